"""Options of data sets to learn from: their columns, and the length of sequences. Messages call them ``data.*``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlhf_config.common import TOKEN_CACHE
from rlhf_config.prompts import PromptForm, RowSets


class SequenceOptions(RowSets):
    """Options by which rows become sequences."""

    max_length: int = Field(
        2048, ge=2, description="largest number of tokens of a sequence, including the prompt"
    )
    on_too_long: Literal["refuse", "truncate"] = Field(
        "refuse",
        description="refuse: a longer sequence is a bad row; truncate: it loses its end, and is a bad row if no "
        "learned token is left",
    )
    cache: str = Field("off", min_length=1, description=TOKEN_CACHE)


class PromptColumns(PromptForm):
    """Columns of a prompt, as ``data.*`` of a run has them."""

    tools_key: str | None = Field(
        None,
        description="column with the tools of a chat: JSON schemas, as a list, a list of JSON texts, or as JSON text",
    )


class ConversationColumns(PromptColumns):
    """Columns of rows to imitate: prompt and response, or a list of messages, or plain text."""

    response_key: str = Field(
        "response", description="column with the answer to the prompt, as text"
    )
    messages_key: str | None = Field(
        None, description="column with whole conversations, instead of prompt and response"
    )
    text_key: str | None = Field(
        None,
        description="column with plain text for continued pre-training, instead of prompt and response; unset: none",
    )
    learn: Literal["all", "last"] = Field(
        "all", description="learn all turns of the assistant, or the last one only"
    )
    roles: tuple[Literal["assistant", "user", "tool", "system", "developer"], ...] = Field(
        ("assistant",),
        min_length=1,
        description="roles whose messages are learned: of others than the assistant the content and the token behind "
        "it, not the mark before it; with learn = last the last message of these roles",
    )

    @model_validator(mode="after")
    def _one_form(self) -> ConversationColumns:
        if self.messages_key is not None and self.text_key is not None:
            raise ValueError("messages_key and text_key exclude each other; set one of them")
        if self.text_key is not None and self.roles != ("assistant",):
            raise ValueError("text_key is plain text, which has no roles; leave roles out")
        if self.text_key is not None and (self.system_prompt is not None or self.chat):
            raise ValueError(
                "text_key is plain text, which has no place for chat and system_prompt; leave them out"
            )
        return self


class LabeledColumns(PromptColumns):
    """Columns of answers that were judged one by one, as KTO learns from."""

    response_key: str = Field(
        "completion", description="column with the answer to the prompt, as text"
    )
    messages_key: str | None = Field(
        None, description="column with whole conversations, whose last assistant turn was judged"
    )
    label_key: str = Field(
        "label", description="column with true or 1 for a good answer, else false or 0"
    )


class PairColumns(PromptColumns):
    """Columns of two answers to one prompt, of which one was preferred."""

    chosen_key: str = Field(
        "chosen",
        description="column with the preferred answer: text, the messages behind a prompt of messages, or a whole "
        "conversation",
    )
    rejected_key: str = Field(
        "rejected", description="column with the other answer, in the form of the preferred one"
    )
    margin_key: str | None = Field(
        None,
        description="column with a number that says how much better the preferred answer is; unset: no margin",
    )


class StepLabelColumns(PromptColumns):
    """Columns of solutions with a label for each step, as process reward models learn from."""

    steps_key: str = Field("completions", description="column with the list of steps, as texts")
    text_key: str | None = Field(
        None,
        description="column with prompt and steps as one text that has the separator after each step, instead of "
        "prompt and list; unset: none",
    )
    labels_key: str = Field(
        "labels", description="column with a label for each step: true or false, or from 0 to 1"
    )
    separator: str = Field(
        "\n",
        min_length=1,
        description="text after each step, at whose last token the step's label is learned",
    )

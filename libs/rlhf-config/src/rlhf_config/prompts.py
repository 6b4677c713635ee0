"""Options of ``rlhf train`` on prompts: where rows come from, which columns count and in which order they come."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core.component import Config
from rlhf_core.contracts.executor import ControlWordUse

from .common import (
    CONTROL_WORDS,
    FORM,
    TEMPLATE_KWARGS,
    FormName,
    ImageData,
    Positive,
    Probability,
    TemplateVariables,
    TrainSets,
)


class RowSets(Config):
    """Sets of rows, and what becomes of a row."""

    split: str = Field(
        "train", description="split to read from folders and hub sets that have several"
    )
    max_samples: Positive | None = Field(
        None, description="number of rows to use, the first ones of each set; unset: all rows"
    )
    on_bad_row: Literal["fail", "skip"] = Field(
        "fail",
        description="what happens at a bad row: fail ends the command before anything is built; skip leaves the row "
        "out and counts it",
    )
    control_words: ControlWordUse = Field("text", description=CONTROL_WORDS)
    chat_template_kwargs: TemplateVariables = Field(
        default_factory=dict, description=TEMPLATE_KWARGS
    )


class PromptForm(Config):
    """Columns of a prompt, and how they become one."""

    form: FormName | None = Field(None, description=FORM)
    prompt_key: str = Field(
        "prompt", description="column with the prompt, which is text or a list of chat messages"
    )
    template: str | None = Field(
        None,
        description="format string that makes the prompt from the row's columns, such as 'Q: {question}\\nA:'; "
        "unset: the prompt is the column prompt_key",
    )
    system_prompt: str | None = Field(
        None,
        description="system message before each conversation; needs prompts that are messages, or chat = true",
    )
    chat: bool = Field(
        False,
        description="turn each text prompt into a user message, which the model's chat template renders; false: the "
        "prompt stays plain text",
    )


class PromptData(PromptForm, RowSets, TrainSets):
    """Sets of prompts."""

    max_prompt_tokens: Positive = Field(
        1024, description="largest number of tokens of a prompt; a longer prompt makes a bad row"
    )


class DataConfig(ImageData, PromptData):
    """Rows of a run: sets of prompts or a data source, and the order in which prompts come."""

    source: str | None = Field(
        None,
        description="component that gives the rows instead of data.train: NAME, or FILE.py:NAME for a function of "
        "your own",
    )
    probabilities: tuple[Probability, ...] = Field(
        (),
        description="share of each set of data.train in the mix of all; unset: the sets are joined as they are",
    )
    shuffle: bool = Field(
        True,
        description="put the rows into a new order in each epoch, drawn from the seed; false: they keep their order",
    )
    sampler: str | None = Field(
        None,
        description="component that chooses the next prompts; unset: each prompt comes once an epoch",
    )

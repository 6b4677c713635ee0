"""The forms, each one entry. Of several that a row matches, the first one that the command is for is taken."""

from __future__ import annotations

from collections.abc import Mapping

from . import answers, chats, pairs
from .form import DataForm, RowKind

_PAIR = {"prompt_key": "prompt", "chosen_key": "chosen", "rejected_key": "rejected"}

FORMS = (
    DataForm(
        name="response",
        title="prompts with responses",
        kind=RowKind.RESPONSES,
        matches=answers.has_response,
        keys={"prompt_key": "prompt", "response_key": "response"},
    ),
    DataForm(
        name="completion",
        title="prompts with completions",
        kind=RowKind.RESPONSES,
        matches=answers.has_completion,
        keys={"prompt_key": "prompt", "response_key": "completion"},
    ),
    DataForm(
        name="sharegpt",
        title="ShareGPT conversations",
        kind=RowKind.CONVERSATIONS,
        matches=answers.has_turns,
        keys={"messages_key": "messages"},
        own=chats.conversation,
        prompt=chats.asked,
    ),
    DataForm(
        name="messages",
        title="conversations of chat messages",
        kind=RowKind.CONVERSATIONS,
        matches=answers.has_conversation,
        keys={"messages_key": "messages"},
        own=chats.conversation,
        prompt=chats.asked,
    ),
    DataForm(
        name="alpaca",
        title="Alpaca instructions",
        kind=RowKind.CONVERSATIONS,
        matches=answers.is_alpaca,
        keys={"messages_key": "messages"},
        own=answers.alpaca,
        prompt=chats.asked,
    ),
    DataForm(
        name="chat_completion",
        title="prompts and completions of chat messages",
        kind=RowKind.CONVERSATIONS,
        matches=answers.has_chat_completion,
        keys={"messages_key": "messages"},
        own=answers.chat_completion,
    ),
    DataForm(
        name="text",
        title="plain texts",
        kind=RowKind.TEXTS,
        matches=answers.has_text,
        keys={"text_key": "text"},
    ),
    DataForm(
        name="hh_rlhf",
        title="HH-RLHF transcripts",
        kind=RowKind.PAIRS,
        matches=pairs.is_transcripts,
        keys={"chosen_key": "chosen", "rejected_key": "rejected"},
        own=pairs.transcripts,
        prompt=pairs.asked,
    ),
    DataForm(
        name="sharegpt_pair",
        title="conversations with two answers",
        kind=RowKind.PAIRS,
        matches=pairs.is_answered_pair,
        keys=_PAIR,
        own=pairs.answered_pair,
        prompt=pairs.asked,
    ),
    DataForm(
        name="messages_pair",
        title="conversations with another last answer",
        kind=RowKind.PAIRS,
        matches=pairs.has_other_answer,
        keys=_PAIR,
        own=pairs.other_answer,
        prompt=pairs.asked,
    ),
    DataForm(
        name="alpaca_pair",
        title="preference pairs with Alpaca instructions",
        kind=RowKind.PAIRS,
        matches=pairs.is_alpaca_pair,
        keys=_PAIR,
        own=pairs.alpaca_pair,
        prompt=pairs.asked,
    ),
    DataForm(
        name="pair",
        title="preference pairs",
        kind=RowKind.PAIRS,
        matches=pairs.is_pair,
        keys=_PAIR,
        prompt=pairs.asked,
    ),
    DataForm(
        name="labeled_chat",
        title="KTO rows of chat messages",
        kind=RowKind.JUDGED,
        matches=answers.has_judged_chat,
        keys={"messages_key": "messages", "label_key": "label"},
        own=answers.judged_chat,
        prompt=chats.asked,
    ),
    DataForm(
        name="labeled",
        title="KTO rows",
        kind=RowKind.JUDGED,
        matches=answers.has_judged_completion,
        keys={"prompt_key": "prompt", "response_key": "completion", "label_key": "label"},
    ),
    DataForm(
        name="labeled_response",
        title="KTO rows with responses",
        kind=RowKind.JUDGED,
        matches=answers.has_judged_response,
        keys={"prompt_key": "prompt", "response_key": "response", "label_key": "label"},
    ),
    DataForm(
        name="steps",
        title="solutions with labels of their steps",
        kind=RowKind.STEPS,
        matches=answers.has_steps,
        keys={"prompt_key": "prompt", "steps_key": "completions", "labels_key": "labels"},
    ),
    DataForm(
        name="prompt",
        title="prompts",
        kind=RowKind.PROMPTS,
        matches=answers.has_prompt,
        keys={"prompt_key": "prompt"},
    ),
    DataForm(
        name="chat_prompt",
        title="prompts of chat messages",
        kind=RowKind.PROMPTS,
        matches=chats.has_question,
        keys={"prompt_key": "prompt"},
        own=chats.question,
    ),
    # Such rows are prompts first of all: of forms with as many columns the first is taken.
    DataForm(
        name="verl",
        title="verl's questions with answers",
        kind=RowKind.RESPONSES,
        matches=answers.has_verl_answer,
        keys={"response_key": "response"},
        own=answers.verl_answer,
    ),
)
BY_NAME: Mapping[str, DataForm] = {form.name: form for form in FORMS}

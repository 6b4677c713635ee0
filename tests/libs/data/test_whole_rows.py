"""Rows of every command reach the model whole, or are refused by file, row and message."""

import numpy as np
import pytest
from tests.libs.data.chat.template.shipped import renderer_of
from tests.libs.data.learned.conftest import LOADERS

from rlhf_core.errors import DataError
from rlhf_data import (
    ConversationColumns,
    LabeledColumns,
    PairColumns,
    SequenceOptions,
    StepLabelColumns,
)
from rlhf_data.prompts import tokenize_prompts
from rlhf_data.rows import PromptFormat
from rlhf_data.sources import open_source
from rlhf_testing.errors import has_code

USER = {"role": "user", "content": "What is this?"}
PARTS = {
    "role": "user",
    "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}],
}
ANSWER = {"role": "assistant", "content": "It is."}
OTHER = {"role": "assistant", "content": "No idea."}
LATE = [USER, ANSWER, {"role": "system", "content": "Be brief."}, USER]
DEVELOPER = [{"role": "developer", "content": "Be brief."}, USER]
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00000",
            "type": "function",
            "function": {"name": "look", "arguments": {"at": "it"}},
        }
    ],
}
RESULT = {"role": "tool", "content": "42", "name": "look", "tool_call_id": "call00000"}
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}

SFT = ConversationColumns(messages_key="messages")
LAST = ConversationColumns(messages_key="messages", learn="last", tools_key="tools")


def load(template, columns, path):
    renderer = renderer_of(template)
    eos = renderer.tokenizer.eos_token_id
    return LOADERS[type(columns)]([path], columns, SequenceOptions(), renderer, eos=eos)


def text_of(template, rows):
    ids = rows.columns.token_ids.tolist()
    return renderer_of(template).decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("template", "columns", "row", "said", "code"),
    [
        (
            "qwen2_5",
            SFT,
            {"messages": [*DEVELOPER, ANSWER]},
            r"message 1 \(developer\): .* 'Be brief.' is missing",
            "data/hidden-by-the-template",
        ),
        (
            "gptoss",
            SFT,
            {"messages": [*LATE, ANSWER]},
            r"message 3 \(system\): .* Merge it into the first message",
            "data/hidden-by-the-template",
        ),
        (
            "gptoss",
            PairColumns(),
            {"prompt": LATE, "chosen": "It is.", "rejected": "No idea."},
            r"message 3 \(system\): .* 'Be brief.' is missing",
            "data/hidden-by-the-template",
        ),
        (
            "gptoss",
            PairColumns(),
            {"chosen": [*LATE, ANSWER], "rejected": [*LATE, OTHER]},
            r"message 3 \(system\): .* 'Be brief.' is missing",
            "data/hidden-by-the-template",
        ),
        (
            "qwen2_5",
            LabeledColumns(response_key="response"),
            {"prompt": DEVELOPER, "response": "It is.", "label": True},
            r"message 1 \(developer\): .* 'Be brief.' is missing",
            "data/hidden-by-the-template",
        ),
        (
            "qwen2_5",
            StepLabelColumns(steps_key="steps", labels_key="labels"),
            {"prompt": DEVELOPER, "steps": ["One.", "Two."], "labels": [1, 0]},
            r"message 1 \(developer\): .* 'Be brief.' is missing",
            "data/hidden-by-the-template",
        ),
        (
            "phi3",
            LAST,
            {"messages": [USER, CALL, USER, ANSWER], "tools": None},
            r"message 2 \(assistant\): the chat template does not show the call of look: 'look' is missing",
            "data/hidden-by-the-template",
        ),
        (
            "llama3",
            LAST,
            {"messages": [USER, ANSWER], "tools": [TOOL]},
            r"tool 1 \(look\): the chat template does not show the tool",
            "data/hidden-by-the-template",
        ),
        (
            "gemma",
            SFT,
            {"messages": [USER, USER, ANSWER]},
            r"message 2 \(user\): .* Conversation roles must alternate",
            "data/chat-template",
        ),
    ],
)
def test_a_learned_row_whose_template_leaves_something_out_is_named(
    template, columns, row, said, write_rows, code
):
    good = {
        "messages": [USER, ANSWER],
        "prompt": [USER],
        "chosen": "a",
        "rejected": "b",
        "response": "c",
    }
    good |= {"label": True, "steps": ["One."], "labels": [1], "tools": None}
    if isinstance(row.get("chosen"), list):
        good |= {"chosen": [USER, ANSWER], "rejected": [USER, OTHER]}
    path = write_rows([good, row])

    with pytest.raises(
        DataError,
        match=rf"1 of 2 rows cannot be used \(1 [a-z ]+\)\n.*rows.jsonl:2: {said}",
        check=has_code(code),
    ):
        load(template, columns, path)


@pytest.mark.parametrize(
    "template", ["qwen2_5", "llama3", "gptoss", "llava_next", "smolvlm", "phi3", "glm4moe"]
)
def test_text_parts_of_a_row_are_learned_from_as_the_text_is(template, write_rows):
    parts = load(template, SFT, write_rows([{"messages": [PARTS, ANSWER]}], "parts.jsonl"))
    text = load(template, SFT, write_rows([{"messages": [USER, ANSWER]}], "text.jsonl"))

    assert "What is this?" in text_of(template, text)
    assert parts.columns.token_ids.tolist() == text.columns.token_ids.tolist()
    assert parts.columns.action_mask.tolist() == text.columns.action_mask.tolist()


def test_a_system_prompt_that_the_template_has_no_place_for_makes_bad_rows(write_rows):
    source = open_source(write_rows([{"prompt": [USER]}]), split=None)
    renderer = renderer_of("mistral_v3")
    quiet = renderer_of("gemma")
    asked = PromptFormat(system_prompt="Be brief.")

    (bad,) = tokenize_prompts(source, np.ones(1, dtype=bool), asked, quiet, 4096).bad
    fine = tokenize_prompts(source, np.ones(1, dtype=bool), asked, renderer, 4096)

    assert bad.where.endswith("rows.jsonl:1")
    assert bad.reason == "the chat template refuses the messages: System role not supported"
    assert "Be brief." in renderer.decode(fine.tokens(0))


@pytest.mark.parametrize(
    ("prompt", "kind", "said"),
    [
        (
            DEVELOPER,
            "hidden by the template",
            "message 1 (developer): the chat template does not show its text",
        ),
        (
            [{"role": "user", "content": [{"type": "audio", "audio": "a.wav"}]}],
            "unknown part",
            "of type 'audio'",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x", "max_pixels": 9}]}],
            "unknown part",
            "message 1, part 1: a text has the unknown key max_pixels",
        ),
        ([{"role": "user", "content": []}], "empty", "message 1 is empty"),
        (
            [{"role": "user", "content": [{"type": "text", "text": " "}]}],
            "empty",
            "message 1 is empty",
        ),
    ],
)
def test_a_prompt_that_would_lose_something_is_a_bad_row(prompt, kind, said, write_rows):
    source = open_source(write_rows([{"prompt": prompt}, {"prompt": [USER]}]), split=None)

    made = tokenize_prompts(
        source, np.ones(2, dtype=bool), PromptFormat(), renderer_of("qwen2_5"), 4096
    )

    assert [(one.where[-12:], one.kind) for one in made.bad] == [("rows.jsonl:1", kind)]
    assert said in made.bad[0].reason
    assert made.rows.tolist() == [1]

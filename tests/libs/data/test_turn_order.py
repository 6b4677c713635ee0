"""Rows whose roles do not alternate are named by file, row and message, where the chat template writes them."""

import json
import logging

import numpy as np
import pytest
from tests.libs.data.chat.zoo import renderer_of, tokenizer_of

from rlhf_data import (
    ConversationColumns,
    PairColumns,
    SequenceOptions,
    load_conversations,
    load_pairs,
)
from rlhf_data.checking import Expectations, check_source
from rlhf_data.prompts import tokenize_prompts
from rlhf_data.rows import PromptFormat
from rlhf_data.sources import open_source
from rlhf_data.turn_order import out_of_turn

RENDERER = renderer_of("thinking")
SYSTEM, USER, TOOL = ({"role": role, "content": f"a {role}"} for role in ("system", "user", "tool"))
ANSWER = {"role": "assistant", "content": "It is."}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {}}}],
}


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [USER, ANSWER, USER, ANSWER],
        [SYSTEM, USER, ANSWER, SYSTEM, USER],
        [USER, CALL, TOOL, TOOL, ANSWER],
        [USER, CALL, TOOL, CALL, TOOL, ANSWER, USER],
        [USER, CALL, TOOL, USER],
        [{**USER, "role": "narrator"}, {**USER, "role": "narrator"}],
    ],
)
def test_roles_that_alternate_are_not_named(messages):
    assert out_of_turn(messages) is None


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([USER, USER, ANSWER], "message 2 (user) follows another message of the user"),
        ([USER, SYSTEM, USER], "message 3 (user) follows another message of the user"),
        ([USER, ANSWER, ANSWER], "message 3 (assistant) follows another message of the assistant"),
        ([USER, CALL, ANSWER], "message 3 (assistant) follows another message of the assistant"),
        ([ANSWER, USER], "message 1 (assistant) has no message of the user before it"),
        ([SYSTEM, ANSWER], "message 2 (assistant) has no message of the user before it"),
        ([USER, TOOL, ANSWER], "message 2 (tool) has no call before it"),
        ([TOOL, ANSWER], "message 1 (tool) has no call before it"),
    ],
)
def test_the_first_message_out_of_turn_is_named(messages, said):
    assert out_of_turn(messages) == said


def written(tmp_path, rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def learn(path, cache="off"):
    return load_conversations(
        [path],
        ConversationColumns(messages_key="messages"),
        SequenceOptions(cache=cache),
        RENDERER,
        eos=tokenizer_of("thinking").eos_token_id,
    )


def test_at_most_five_rows_are_named_also_where_their_tokens_are_cached(tmp_path, caplog):
    odd, even = {"messages": [USER, USER, ANSWER]}, {"messages": [USER, ANSWER]}
    path = written(tmp_path, [even, *[odd] * 7])

    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            rows = learn(path, str(tmp_path / "cache"))

        assert rows.bad == ()
        (warning,) = caplog.messages
        first, *named, more, advice = warning.splitlines()
        assert first == (
            "data.train: the roles of 7 of 8 rows do not alternate. They are read as they are, where the chat template "
            "writes them:"
        )
        said = "message 2 (user) follows another message of the user"
        assert named == [f"  {path}:{number}: {said}" for number in range(2, 7)]
        assert more == "  and 2 more"
        assert "leave the row out" in advice


def test_rows_that_alternate_say_nothing(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        learn(written(tmp_path, [{"messages": [USER, ANSWER]}] * 3))

    assert caplog.messages == []


def test_a_pair_is_named_once(tmp_path, caplog):
    path = written(tmp_path, [{"prompt": [USER, USER], "chosen": "yes", "rejected": "no"}] * 2)
    with caplog.at_level(logging.WARNING):
        load_pairs(
            [path],
            PairColumns(),
            SequenceOptions(),
            RENDERER,
            eos=tokenizer_of("thinking").eos_token_id,
        )

    (warning,) = caplog.messages
    assert warning.startswith("data.train: the roles of 2 of 2 rows do not alternate.")
    assert warning.count("message 2 (user) follows another message of the user") == 2


def test_prompts_are_named(tmp_path):
    source = open_source(written(tmp_path, [{"prompt": [USER]}, {"prompt": [ANSWER, USER]}]))

    made = tokenize_prompts(source, np.ones(2, dtype=bool), PromptFormat(), RENDERER, 1000)

    assert made.bad == ()
    assert made.order.rows == 1
    assert made.order.shown == (
        f"{source.where(1)}: message 1 (assistant) has no message of the user before it",
    )


@pytest.mark.parametrize("renderer", [None, RENDERER])
def test_a_check_names_them_and_they_are_usable(tmp_path, renderer):
    rows = [{"messages": [USER, ANSWER]}, {"messages": [USER, USER, ANSWER]}]
    source = open_source(written(tmp_path, rows))

    report = check_source(source, Expectations(format=PromptFormat(), renderer=renderer))

    assert report.bad == ()
    assert report.order.shown == (
        f"{source.where(1)}: message 2 (user) follows another message of the user",
    )

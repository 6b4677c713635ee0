"""A conversation as data."""

from __future__ import annotations

import json

import pytest

from rlhf_core import ConfigError
from rlhf_plugin_inference.chat.conversation import ChatHistory
from rlhf_testing.errors import has_code


def said(history):
    return [(message["role"], message["content"]) for message in history.messages]


@pytest.fixture
def history():
    history = ChatHistory("be brief")
    history.ask("one?")
    history.answer("1")
    history.ask("two?")
    history.answer("2")
    return history


def test_messages_stand_in_turn_behind_the_system_prompt(history):
    expected = [("system", "be brief"), ("user", "one?"), ("assistant", "1")]

    assert said(history) == [*expected, ("user", "two?"), ("assistant", "2")]
    assert history.turn == 2


def test_a_new_system_prompt_keeps_what_was_said(history):
    history.system = None

    assert said(history)[0] == ("user", "one?")


def test_an_answer_that_is_taken_back_leaves_its_question_for_another_attempt(history):
    assert history.take_back_answer()

    assert said(history)[-1] == ("user", "two?")
    assert (history.turn, history.attempt) == (2, 1)
    history.answer("zwei")
    history.ask("three?")
    assert history.attempt == 0


def test_a_blank_answer_takes_its_question_back(history):
    history.ask("three?")
    history.answer(" \n")

    assert said(history)[-1] == ("assistant", "2")


def test_a_reset_keeps_the_system_prompt_alone(history):
    history.reset()

    assert said(history) == [("system", "be brief")]
    assert not history.take_back_answer()


def test_conversations_are_appended_to_a_file(history, tmp_path):
    path = tmp_path / "chats.jsonl"

    history.save(path)
    history.reset()
    history.ask("x")
    history.save(path)

    first, second = map(json.loads, path.read_text().splitlines())
    assert [m["role"] for m in first["messages"]] == ["system", *["user", "assistant"] * 2]
    assert second == {"messages": list(history.messages)}


def test_a_file_that_cannot_be_written_is_refused(history, tmp_path):
    with pytest.raises(ConfigError, check=has_code("output/chat-not-saved")):
        history.save(tmp_path)

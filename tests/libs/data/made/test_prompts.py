"""Prompts of rows that come one by one, from data sources and environments: the form of rows is theirs too."""

import json
import logging

import pytest

from rlhf_core.errors import DataError
from rlhf_data.made.prompts import PromptReader
from rlhf_testing.errors import has_code

ASKED, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}
SHAREGPT = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]}


@pytest.fixture
def reader(run_config, renderer):
    """``reader(every=True, **data)``: the reader of a run with these options of ``data``."""
    return lambda every=True, **data: PromptReader(run_config(**data).data, renderer, every=every)


def test_rows_of_a_source_say_their_form_once(reader, caplog):
    caplog.set_level(logging.INFO, "rlhf_data")
    prompts = reader()

    for number in range(3):
        prompts.read({"prompt": "a", "answer": "b"}, f"grown.jsonl:row {number + 1}")

    assert caplog.messages == ["data.source: prompts, 2 columns (grown.jsonl:row 1)"]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASKED]},
        {"messages": json.dumps([ASKED])},
        {"prompt": json.dumps([ASKED])},
    ],
)
def test_a_row_of_a_source_is_read_in_its_form(reader, renderer, row):
    made = reader().read(row, "row 1")

    assert made.messages == (ASKED,)
    assert renderer.decode(made.token_ids) == "user:Hi\nassistant:"


def test_a_form_that_is_named_gives_the_prompts_of_a_sources_conversations(reader):
    made = reader(form="sharegpt").read(SHAREGPT, "row 1")

    assert made.messages == (ASKED,)


def test_a_source_of_conversations_says_what_learns_from_them(reader):
    with pytest.raises(
        DataError,
        match=r"(?s)^row 1: these look like ShareGPT.*--data.form share",
        check=has_code("data/other-form"),
    ):
        reader().read(SHAREGPT, "row 1")


def test_a_row_of_another_form_than_the_first_is_refused_by_its_place(reader):
    prompts = reader(form="sharegpt")
    prompts.read(SHAREGPT, "row 1")

    with pytest.raises(DataError, match=r"^row 2.*sharegpt", check=has_code("data/another-form")):
        prompts.read({"instruction": "Add.", "input": "", "output": "5"}, "row 2")


def test_a_column_that_an_option_names_wins(reader):
    made = reader(prompt_key="question").read({"question": "a", "messages": [ASKED]}, "row 1")

    assert made.messages == ()


def test_the_prompt_of_an_environments_row_may_be_messages_as_text(reader):
    made = reader(every=False, prompt_key="q").read({"prompt": json.dumps([ASKED])}, "quiz, task 0")

    assert made.messages == (ASKED,)
    assert made.row["prompt"] == [ASKED]


def test_a_conversation_of_an_environments_row_is_the_environments(reader):
    assert not reader(every=False).has_prompt({"messages": [ASKED, ANSWER]})

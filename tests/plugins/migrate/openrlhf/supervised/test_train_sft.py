"""The columns of supervised fine-tuning."""

import pytest

from rlhf_plugin_migrate.openrlhf.supervised import train_sft
from rlhf_plugin_migrate.table.outcome import Status


def columns(settings):
    names = ("prompt_key", "response_key", "messages_key", "text_key", "learn", "chat", "template")
    return {name: settings[f"data.{name}"] for name in names if f"data.{name}" in settings}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            "--data.input_key q --data.output_key a",
            {"template": "User: {q}\nAssistant: ", "response_key": "a"},
        ),
        (
            "--data.input_key q --data.output_key a --data.input_template ''",
            {"prompt_key": "q", "response_key": "a"},
        ),
        (
            "--data.input_key q --data.output_key a --data.apply_chat_template",
            {"prompt_key": "q", "response_key": "a", "chat": True},
        ),
        (
            "--data.input_key m --data.apply_chat_template",
            {"messages_key": "m", "learn": "last"},
        ),
        (
            "--data.input_key m --data.apply_chat_template --data.multiturn",
            {"messages_key": "m", "learn": "all"},
        ),
        ("--data.input_key t --model.pretrain_mode_enable", {"text_key": "t"}),
        # OpenRLHF looks at no other flag of the data then.
        (
            "--data.input_key t --model.pretrain_mode_enable --data.apply_chat_template",
            {"text_key": "t"},
        ),
    ],
)
def test_forms_of_rows(learned, flags, expected):
    assert columns(learned("train_sft", flags)[0]) == expected


def test_a_conversation_in_two_columns_is_missing(learned):
    _, rows = learned(
        "train_sft", "--data.apply_chat_template --data.multiturn --data.output_key last"
    )

    assert rows["--data.output_key last"].status is Status.MISSING


def test_rows_without_an_answer_are_warned_of():
    assert [text for text in train_sft.migrate([], 1).warnings if "data.response_key" in text]


def test_a_cut_and_a_blank_before_the_end_are_told(learned):
    _, rows = learned("train_sft", "--data.output_key a --data.max_len 100")

    assert rows["--data.output_key a"].status is Status.DIFFERS
    assert "end of sequence at the cut" in rows["--data.max_len 100"].text

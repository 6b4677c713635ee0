"""Columns of rows to learn from that nothing reads, said in one line."""

import json
import logging

import pytest

from rlhf_config.run import PromptData
from rlhf_data import ConversationColumns, LabeledColumns, PairColumns, StepLabelColumns
from rlhf_data.checked.structure import AnyColumns
from rlhf_data.checking import Expectations, check_source
from rlhf_data.forms.form import RowKind
from rlhf_data.forms.recognizing import formed
from rlhf_data.rows import PromptFormat
from rlhf_data.sources import open_source

ASKED, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}
PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}
CHATS = {"messages": [ASKED, ANSWER]}
ALPACA = {"instruction": "Add.", "input": "", "output": "5"}
SHAREGPT = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}


@pytest.mark.parametrize(
    ("columns", "row", "unread"),
    [
        (PairColumns(), {**PAIR, "margin": 1.5, "id": 7}, ("margin", "id")),
        (PairColumns(margin_key="margin"), {**PAIR, "margin": 1.5}, ()),
        (PairColumns(), {**PAIR, "system": "Be brief.", "tools": [TOOL]}, ()),
        (PairColumns(), {**PAIR, "ref_chosen_logps": -3.0}, ("ref_chosen_logps",)),
        (ConversationColumns(), {**CHATS, "chat_template_kwargs": {"a": 1}, "images": ["a.png"]}, ()),
        (ConversationColumns(), {**CHATS, "rejected": "no", "prompt": "Hi"}, ("rejected", "prompt")),
        (ConversationColumns(), {**CHATS, "score": 3, "source": ""}, ("score",)),
        (ConversationColumns(), {**CHATS, "weight": 1, "train": True}, ()),
        (ConversationColumns(), {**CHATS, "weight": 0.5}, ("weight",)),
        (ConversationColumns(), {**ALPACA, "system": "Be brief.", "history": [["a", "b"]]}, ()),
        (ConversationColumns(), {**ALPACA, "input": "2 + 3", "text": "Add. 2 + 3 5"}, ("text",)),
        (ConversationColumns(), {**SHAREGPT, "id": "x"}, ("id",)),
        (ConversationColumns(form="columns"), {"prompt": "a", "response": "b", "system": "s"}, ("system",)),
        (
            ConversationColumns(template="{q} {hint[0]}"),
            {"q": "a", "hint": ["c"], "response": "b", "prompt": "z"},
            ("prompt",),
        ),
        (LabeledColumns(), {"prompt": "a", "completion": "b", "label": True, "kto_tag": True}, ("kto_tag",)),
        (
            StepLabelColumns(),
            {"prompt": "a", "completions": ["b"], "labels": [True], "margin": 1},
            ("margin",),
        ),
        (PromptData(), {"prompt": "a", "label": "5", "margin": 1}, ()),
    ],
)  # fmt: skip
def test_columns_that_make_no_difference_are_found(read, columns, row, unread):
    """Rows of prompts go to rewards and environments whole, which may read any column."""
    assert read(columns, [row]).found.unread == unread


def test_a_column_that_one_row_reads_is_read(read):
    rows = [{**ALPACA, "input": ""}, {**ALPACA, "input": "2"}, {**ALPACA, "system": "Be brief."}]

    assert read(ConversationColumns(), rows).found.unread == ()


def test_the_line_says_which_option_reads_a_column(read, caplog):
    caplog.set_level(logging.INFO, "rlhf_data")

    read(PairColumns(), [{**PAIR, "margin": 1.5, "id": 7}])
    read(ConversationColumns(), [{**CHATS, "text": "a"}])
    read(PairColumns(), [{**PAIR, "id": 7}])

    said = [record for record in caplog.records if "nothing reads" in record.getMessage()]
    assert [(one.levelname, one.getMessage()) for one in said] == [
        (
            "WARNING",
            "data: columns that nothing reads: 'margin' (rlhf rm learns it with --data.margin_key margin), 'id' "
            "(rows.jsonl)",
        ),
        (
            "WARNING",
            "data: columns that nothing reads: 'text' (--data.text_key text reads it) (rows.jsonl)",
        ),
        ("INFO", "data: columns that nothing reads: 'id' (rows.jsonl)"),
    ]


def test_the_option_is_that_of_the_set(write_rows, caplog):
    from rlhf_config.run import SupervisedConfig

    source = open_source(write_rows([{"prompt": "a", "response": "b", "completion": "c"}]))

    formed(source, SupervisedConfig(), (RowKind.RESPONSES,), option="supervised.data", spec="s")

    assert (
        "supervised.data: columns that nothing reads: 'completion' (--supervised.response_key"
        in caplog.text
    )


def test_the_check_of_a_file_says_the_same(write_rows):
    source = open_source(write_rows([{**PAIR, "margin": 1.5, "note": "x"}]))

    report = check_source(source, Expectations(format=PromptFormat(), columns=AnyColumns()))

    assert report.unread == "'margin' (rlhf rm learns it with --data.margin_key margin), 'note'"
    assert json.dumps(report.num_bad) == "0"

"""Answers with a label each, and labels that are none."""

import pytest

from rlhf_core.errors import DataError
from rlhf_data import LabeledColumns
from rlhf_testing.errors import has_code

CHAT = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]


def test_labels_are_rewards(load, shown):
    rows = load(
        LabeledColumns(),
        [
            {"prompt": "1+1=", "completion": "2", "label": True},
            {"prompt": "1+1=", "completion": "3", "label": False},
        ],
    )

    assert [shown(rows, row) for row in (0, 1)] == ["1+1=[2<eos>]", "1+1=[3<eos>]"]
    assert rows.columns.reward.tolist() == [1.0, 0.0]


def test_the_last_answer_of_a_conversation_is_the_judged_one(load, shown):
    columns = LabeledColumns(messages_key="messages", label_key="good")

    rows = load(columns, [{"messages": [*CHAT, *CHAT], "good": False}])

    assert rows.columns.num_turns.tolist() == [1]
    assert shown(rows, 0).endswith("assistant\n[So.<|im_end|>]\n")


@pytest.mark.parametrize(
    ("label", "reward"),
    [(1, 1.0), (0, 0.0), (1.0, 1.0), ("true", 1.0), ("False", 0.0), ("0", 0.0), ("1.0", 1.0)],
)
def test_a_label_may_be_a_number_or_text(load, label, reward):
    rows = load(LabeledColumns(), [{"prompt": "a", "completion": "b", "label": label}])

    assert rows.columns.reward.tolist() == [reward]


@pytest.mark.parametrize(
    ("label", "code"),
    [
        (2, "data/bad-label"),
        (-1, "data/bad-label"),
        (0.5, "data/bad-label"),
        ("yes", "data/bad-label"),
        ("", "data/bad-label"),
        (None, "data/empty"),
        ([True], "data/bad-label"),
    ],
)
def test_a_label_that_is_neither_true_nor_false_is_bad(load, label, code):
    good = {"prompt": "a", "completion": "b", "label": True}

    with pytest.raises(
        DataError,
        match=r"rows\.jsonl:2: column 'label'.*(true or false|null)",
        check=has_code(code),
    ):
        load(LabeledColumns(), [good, {**good, "label": label}])


def test_a_row_without_a_label_is_bad(load):
    with pytest.raises(
        DataError, match=r"'label'.*--data\.label_key", check=has_code("data/missing-column")
    ):
        load(LabeledColumns(), [{"prompt": "a", "completion": "b"}])


def test_an_answer_that_python_printed_is_bad(load):
    printed = str([{"role": "assistant", "content": "b"}])

    with pytest.raises(
        DataError, match=r"'completion' has.*json\.dumps", check=has_code("data/printed-messages")
    ):
        load(LabeledColumns(), [{"prompt": "a", "completion": printed, "label": True}])

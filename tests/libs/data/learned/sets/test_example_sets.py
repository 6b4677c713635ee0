"""Rows to train on and held-out sets of commands that train on examples."""

import logging

import pytest
from tests.libs.data.learned.conftest import LOADERS
from tests.libs.data.learned.families import renderer_of

from rlhf_config.checks.held_out import set_names
from rlhf_config.common import HeldOutRows
from rlhf_core import DataError
from rlhf_data import (
    ConversationColumns,
    LabeledColumns,
    PairColumns,
    SequenceOptions,
    StepLabelColumns,
    load_example_sets,
)
from rlhf_testing.errors import has_code

FORMS = {
    ConversationColumns: lambda i: {"response": str(i)},
    LabeledColumns: lambda i: {"completion": str(i), "label": i % 2 == 0},
    PairColumns: lambda i: {"chosen": str(i), "rejected": f"{i}!"},
    StepLabelColumns: lambda i: {"completions": ["a", str(i)], "labels": [True, False]},
}
each_form = pytest.mark.parametrize("form", FORMS)


def rows_of(form, numbers, name="q"):
    return [{"id": i, "prompt": f"{name}{i}?", **FORMS[form](i)} for i in numbers]


@pytest.fixture
def sets_of():
    """``sets_of(form, train, **eval)``: the sets of options as a command loads them."""

    def make(form, train, options=None, **evaluation):
        renderer = renderer_of("qwen2", "characters")
        eos = renderer.tokenizer.eos_token_id

        def load(sets, options, *, option, side):
            return LOADERS[form](sets, form(), options, renderer, eos=eos, option=option, side=side)

        return load_example_sets(
            load, train, options or SequenceOptions(), HeldOutRows(**evaluation)
        )

    return make


def prompts_in(columns, rows=None):
    """The prompts of sequences, each once."""
    tokenizer = renderer_of("qwen2", "characters").tokenizer
    found = range(len(columns)) if rows is None else rows
    texts = (tokenizer.decode(columns.tokens_of(int(row)).tolist()) for row in found)
    return {text.partition("?")[0] + "?" for text in texts}


@each_form
def test_held_out_rows_do_not_train_whatever_the_order_and_the_number_of_rows(
    write_rows, sets_of, form
):
    rows = rows_of(form, range(60))
    both = sets_of(form, [write_rows(rows)], fraction=0.2)
    turned = sets_of(form, [write_rows(rows[::-1] + rows_of(form, range(60, 70)))], fraction=0.2)

    held, train = prompts_in(both.held_out.rows), prompts_in(both.train)

    assert 3 <= len(held) <= 24
    assert held.isdisjoint(train)
    assert held | train == {f"q{i}?" for i in range(60)}
    assert held <= prompts_in(turned.held_out.rows)
    assert train <= prompts_in(turned.train)


@each_form
def test_sets_have_their_own_rows_split_and_limit(write_rows, sets_of, form):
    train = write_rows(rows_of(form, range(9)), "train.jsonl")
    easy = write_rows(rows_of(form, range(5), "e"), "easy.jsonl")
    hard = write_rows(rows_of(form, range(5), "h"), "x.jsonl")

    found = sets_of(
        form,
        [train],
        SequenceOptions(max_samples=2),
        data=(easy, f"hard={hard}"),
        max_samples=3,
    )

    assert len(prompts_in(found.train)) == 2, "data.max_samples cuts training rows"
    names = {
        name: prompts_in(found.held_out.rows, rows) for name, rows in found.held_out.sets.items()
    }
    assert names == {"easy": {"e0?", "e1?", "e2?"}, "hard": {"h0?", "h1?", "h2?"}}


@each_form
def test_rows_that_train_are_counted_by_what_is_read_and_not_by_keys(
    write_rows, sets_of, form, caplog
):
    train = write_rows(rows_of(form, range(9)), "train.jsonl")
    again = [row | {"id": 100 + row["id"]} for row in rows_of(form, range(7, 12))]
    test = write_rows(again, "test.jsonl")

    with caplog.at_level(logging.WARNING):
        sets_of(form, [train], data=(test,))

    assert (
        "eval.data: the run also trains on 2 of the 5 rows of the held-out set 'test'"
        in caplog.text
    )


@each_form
def test_a_run_all_of_whose_held_out_rows_train_is_refused(write_rows, sets_of, form):
    train = write_rows(rows_of(form, range(9)), "train.jsonl")

    with pytest.raises(
        DataError, match="5 of 5 of 'train'", check=has_code("data/held-out-rows-train")
    ):
        sets_of(form, [train], data=(train,), max_samples=5)


def test_the_split_of_a_folder_is_that_of_evaluation(tmp_path, sets_of, datasets_cache):
    from datasets import Dataset, DatasetDict

    splits = {
        name: Dataset.from_list(rows_of(ConversationColumns, range(4), f"{name}-"))
        for name in ("train", "test", "validation")
    }
    DatasetDict(splits).save_to_disk(tmp_path / "set")
    folder = str(tmp_path / "set")

    found = sets_of(ConversationColumns, [folder], data=(folder,))
    other = sets_of(ConversationColumns, [folder], data=(folder,), split="validation")

    assert prompts_in(found.held_out.rows) == {f"test-{i}?" for i in range(4)}
    assert prompts_in(found.train) == {f"train-{i}?" for i in range(4)}
    assert prompts_in(other.held_out.rows) == {f"validation-{i}?" for i in range(4)}


def test_a_set_without_a_usable_row_and_two_sets_of_one_name_are_refused(write_rows, sets_of):
    train = write_rows(rows_of(ConversationColumns, range(4)), "train.jsonl")
    good = write_rows(rows_of(ConversationColumns, range(4), "g"), "good.jsonl")
    bad = write_rows([{"prompt": "b?"}], "bad.jsonl")

    skip = SequenceOptions(on_bad_row="skip")
    with pytest.raises(DataError, match=r"eval\.data.*'bad'", check=has_code("data/none-left")):
        sets_of(ConversationColumns, [train], skip, data=(good, bad))
    with pytest.raises(DataError, match=r"data\.train.*'bad'", check=has_code("data/none-left")):
        sets_of(ConversationColumns, [good, bad], skip)
    with pytest.raises(DataError, match="'good'", check=has_code("data/repeated-name")):
        sets_of(ConversationColumns, [train], data=(good, good))


def test_rows_that_all_ask_the_same_cannot_be_split(write_rows, sets_of):
    train = write_rows([{"prompt": "q?", "response": str(i)} for i in range(9)])

    with pytest.raises(
        DataError, match="at least 2 rows that ask different things", check=has_code("data/no-rows")
    ):
        sets_of(ConversationColumns, [train], fraction=0.5)


def test_names_of_sets():
    assert set_names(HeldOutRows(data=("a/b.jsonl", "hard=c.jsonl")), ()) == ("b", "hard")
    assert set_names(HeldOutRows(fraction=0.1), ("a/b.jsonl", "c/b.jsonl")) == ("b",)
    assert set_names(HeldOutRows(), ("b.jsonl",)) == ()


@each_form
def test_the_form_of_a_set_is_said_once_where_a_share_is_held_out(
    write_rows, sets_of, caplog, form
):
    caplog.set_level(logging.INFO, "rlhf_data")

    sets_of(form, [write_rows(rows_of(form, range(20)))], fraction=0.3)

    said = [record for record in caplog.records if record.name == "rlhf_data.reading_log"]
    assert [record.funcName for record in said] == ["say_form", "say_unread_columns"]

"""Rows as tokens on disk: the same columns as in memory, found again by content and by nothing else."""

import json
import logging
import os

import numpy as np
import pytest
from tests.libs.data.learned.conftest import LOADERS
from tests.libs.data.learned.families import renderer_of

from rlhf_core import DataError
from rlhf_data import (
    ConversationColumns,
    LabeledColumns,
    PairColumns,
    SequenceOptions,
    Side,
    StepLabelColumns,
)
from rlhf_data.learned.sets import token_cache
from rlhf_testing.errors import has_code

FORMS = {
    ConversationColumns: ({}, lambda i: {"response": f"{i} <|im_end|>" * (1 + i % 3)}),
    LabeledColumns: ({}, lambda i: {"completion": str(i), "label": i % 2 == 0}),
    PairColumns: ({"margin_key": "m"}, lambda i: {"chosen": str(i), "rejected": "!", "m": i / 2}),
    StepLabelColumns: ({}, lambda i: {"completions": ["a", str(i)], "labels": [1, 0.5]}),
}


def rows_of(form, numbers):
    return [{"prompt": f"q{i}?", **FORMS[form][1](i)} for i in numbers]


@pytest.fixture
def load(tmp_path):
    """``load(form, paths, family=, side=, **options)``: rows, with a cache in the test's folder."""

    def run(form, paths, *, family="qwen2", side=None, **options):
        renderer = renderer_of(family, "characters")
        options = {"cache": str(tmp_path / "cache"), "max_length": 30, **options}
        return LOADERS[form](
            paths,
            form(**FORMS[form][0]),
            SequenceOptions(**options),
            renderer,
            eos=renderer.tokenizer.eos_token_id,
            side=side or Side(),
        )

    return run


def entries(tmp_path):
    folder = tmp_path / "cache"
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("form", FORMS)
def test_columns_on_disk_are_those_in_memory_at_both_starts(write_rows, load, tmp_path, form):
    rows = [*rows_of(form, range(2500)), '{"broken']
    paths = [write_rows(rows, "a.jsonl"), write_rows(rows_of(form, range(7)), "b.jsonl")]
    options = {"on_bad_row": "skip", "on_too_long": "truncate"}
    memory = load(form, paths, cache="off", **options)

    for _ in range(2):
        found = load(form, paths, **options)

        for name, column in memory.columns.arrays().items():
            np.testing.assert_array_equal(found.columns.arrays()[name], column, err_msg=name)
        assert found.columns.arrays().keys() == memory.columns.arrays().keys()
        np.testing.assert_array_equal(found.read, memory.read)
        assert (found.total, found.bad, found.sets) == (memory.total, memory.bad, memory.sets)
        assert found.inert == memory.inert
        assert found.describe() == memory.describe()
    assert len(entries(tmp_path)) == 1


def test_a_second_start_reads_no_row(write_rows, load, monkeypatch):
    path = write_rows(rows_of(ConversationColumns, range(9)))
    first = load(ConversationColumns, [path])
    monkeypatch.setattr("rlhf_data.learned.reading.open_source", None)

    again = load(ConversationColumns, [path])

    np.testing.assert_array_equal(again.columns.token_ids, first.columns.token_ids)


@pytest.mark.parametrize("form", FORMS)
def test_the_files_of_a_pattern_have_an_entry_by_their_contents(write_rows, load, tmp_path, form):
    whole = load(form, [write_rows(rows_of(form, range(7)))], cache="off")
    for number, part in enumerate((range(4), range(4, 7))):
        write_rows(rows_of(form, part), f"part-{number}.jsonl")
    pattern = str(tmp_path / "part-*.jsonl")

    for _ in range(2):
        found = load(form, [pattern])

        np.testing.assert_array_equal(found.columns.token_ids, whole.columns.token_ids)
        assert list(found.by_name()) == ["part"]
        assert len(entries(tmp_path)) == 1
    write_rows(rows_of(form, range(4, 6)), "part-1.jsonl")
    assert load(form, [pattern]).total == 6
    write_rows(rows_of(form, range(6, 9)), "part-2.jsonl")
    assert load(form, [pattern]).total == 9
    assert len(entries(tmp_path)) == 3


def test_each_start_says_that_a_model_that_reads_text_goes_without_images(write_rows, load, caplog):
    rows = [{**row, "images": ["a.png"]} for row in rows_of(ConversationColumns, range(3))]
    path = write_rows(rows)

    for _ in range(2):
        caplog.clear()
        load(ConversationColumns, [path])

        (said,) = [text for text in caplog.messages if "reads text alone" in text]
        assert "rows have images in the column 'images' (from " in said


def test_what_decides_about_tokens_makes_another_entry(write_rows, load, tmp_path):
    rows = rows_of(ConversationColumns, range(9))
    path = write_rows(rows)
    ways = [
        {},
        {"max_length": 20},
        {"max_samples": 3},
        {"family": "llama3"},
        {"side": Side(fraction=0.3)},
        {"side": Side(fraction=0.3, is_evaluated=True)},
    ]
    for number, way in enumerate(ways, start=1):
        load(ConversationColumns, [path], on_too_long="truncate", **way)
        assert len(entries(tmp_path)) == number, way

    write_rows([*rows[:-1], rows[0]])
    changed = load(ConversationColumns, [path], on_too_long="truncate")
    assert len(entries(tmp_path)) == len(ways) + 1
    assert changed.columns.num_tokens[-1] == changed.columns.num_tokens[0]
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    os.rename(path, moved / "rows.jsonl")
    load(ConversationColumns, [str(moved / "rows.jsonl")], on_too_long="truncate")
    assert len(entries(tmp_path)) == len(ways) + 1, "the same content in another place"


def test_rows_that_cannot_be_used_leave_no_entry(write_rows, load, tmp_path):
    path = write_rows([*rows_of(ConversationColumns, range(9)), {"prompt": "q"}])

    with pytest.raises(DataError, match="1 of 10", check=has_code("data/missing-column")):
        load(ConversationColumns, [path])

    assert entries(tmp_path) == []


def test_bad_rows_are_named_at_every_start(write_rows, load, caplog):
    path = write_rows([*rows_of(ConversationColumns, range(9)), {"prompt": "q"}])

    for _ in range(2):
        caplog.clear()
        load(ConversationColumns, [path], on_bad_row="skip")
        assert "left out 1 of 10 rows" in caplog.text


def test_a_damaged_entry_is_refused_by_name(write_rows, load, tmp_path):
    path = write_rows(rows_of(ConversationColumns, range(9)))
    load(ConversationColumns, [path])
    (entry,) = entries(tmp_path)
    (entry / "token_ids").write_bytes(b"")

    with pytest.raises(DataError, match=entry.name, check=has_code("data/damaged-cache")):
        load(ConversationColumns, [path])


def test_entries_that_nobody_uses_are_removed(write_rows, load, tmp_path):
    load(ConversationColumns, [write_rows(rows_of(ConversationColumns, range(3)))])
    (old,) = entries(tmp_path)
    past = (old / "account.json").stat().st_mtime - 86_400 * (token_cache.UNUSED_DAYS + 1)
    os.utime(old / "account.json", (past, past))

    load(ConversationColumns, [write_rows(rows_of(ConversationColumns, range(4)))])

    (new,) = entries(tmp_path)
    assert new != old
    assert json.loads((new / "account.json").read_text())["account"]["total"] == 4


def test_the_folder_of_an_option(monkeypatch, tmp_path):
    monkeypatch.delenv("RLHF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert token_cache.folder_of("off") is None
    assert token_cache.folder_of("auto") == tmp_path / "rlhf" / "tokens"
    assert str(token_cache.folder_of("mine")) == "mine"
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "own"))
    assert token_cache.folder_of("auto") == tmp_path / "own" / "tokens"


def test_the_form_is_said_at_every_start(write_rows, load, caplog):
    caplog.set_level(logging.INFO, "rlhf_data")
    path = write_rows(rows_of(ConversationColumns, range(3)))
    for _ in range(2):
        caplog.clear()
        load(ConversationColumns, [f"mine={path}"])
        said = [one for one in caplog.messages if one.startswith("data: prompts with responses")]
        assert said == [f"data: prompts with responses, 2 columns ({path})"]

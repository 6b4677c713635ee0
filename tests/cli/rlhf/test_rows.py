"""Rows from Python: copied once, written once, refused by name."""

import json
from collections import UserDict
from pathlib import Path

import numpy as np
import pytest

from rlhf.rows import GivenRows, are_rows
from rlhf_core import DataError
from rlhf_testing.errors import has_code

ROWS = [{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 2}]


def written(rows, tmp_path):
    given = GivenRows(rows, "train", "keyword data")
    given.place(tmp_path)
    given.save()
    return given.entry


def test_the_file_holds_the_rows_and_is_named_after_them(tmp_path):
    first, again = written(ROWS, tmp_path), written(list(ROWS), tmp_path)
    other = written(ROWS[:1], tmp_path)

    assert first == again != other
    with open(first) as file:
        assert [json.loads(line) for line in file] == ROWS


def test_later_changes_of_the_rows_have_no_effect(tmp_path):
    rows = [{"prompt": "a"}]
    given = GivenRows(rows, "train", "keyword data")
    rows[0]["prompt"] = "changed"
    given.place(tmp_path)
    given.save()

    assert json.loads(Path(given.entry).read_text()) == {"prompt": "a"}


def test_a_data_set_and_numbers_of_numpy_are_taken(tmp_path):
    datasets = pytest.importorskip("datasets")
    assert are_rows(datasets.Dataset.from_list(ROWS))

    as_set = written(datasets.Dataset.from_list(ROWS), tmp_path)
    as_numpy = written([{**row, "answer": np.int64(row["answer"])} for row in ROWS], tmp_path)

    assert as_set == as_numpy == written(ROWS, tmp_path)


def test_rows_of_a_data_set_are_those_that_it_was_made_of(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"info": {"x": 1}}, {"info": {"y": "s"}}]

    assert written(datasets.Dataset.from_list(rows), tmp_path) == written(rows, tmp_path)


class Growing(list):
    """Gains a row each time it is read."""

    def __iter__(self):
        for row in list(super().__iter__()):
            self.append(row)
            yield row


class GrowingRow(UserDict):
    """Gains a column while it is read."""

    def __iter__(self):
        for key in super().__iter__():
            self["more"] = 1
            yield key


class EmptySet(list):
    column_names = ("prompt",)


class Stream:
    column_names = ("prompt",)

    def __getitem__(self, index):
        return {}


@pytest.mark.parametrize(
    ("rows", "said", "code"),
    [
        (
            [{"prompt": "a"}, "b"],
            r"data\[1\]: expected a row as a mapping .* got 'b' \(str\)",
            "data/row-no-mapping",
        ),
        ([{"prompt": "a"}, None], r"data\[1\]: expected a row", "data/row-no-mapping"),
        (
            [{1: "a"}],
            r"data\[0\]: expected text as the name of a column, got 1",
            "data/column-name-no-text",
        ),
        (
            [{"prompt": "a", "picture": object()}],
            r"data\[0\]: its column 'picture' .*object",
            "data/column-not-json",
        ),
        (
            [{"prompt": "a", "x": float("nan")}],
            r"data\[0\]: its column 'x' .* NaN or an infinite number. Write None for what is missing",
            "data/column-not-json",
        ),
        (
            Growing([{"prompt": "a"}]),
            "the rows changed while they were read: 1 at first",
            "data/changing-rows",
        ),
        (
            [GrowingRow(prompt="a")],
            r"data\[0\]: the row changed while it was read",
            "data/changing-rows",
        ),
        (EmptySet(), "keyword data: expected at least one row, got none", "data/no-rows"),
        (Stream(), "expected rows whose number is known; got a stream", "data/stream-of-rows"),
    ],
)
def test_bad_rows_are_named(rows, said, code):
    with pytest.raises(DataError, match=said, check=has_code(code)):
        GivenRows(rows, "train", "keyword data")

"""Rows of a data source in a file: the first ones, each once, in the source's order."""

import json
from itertools import count, islice

import pytest

from rlhf_core.errors import DataError
from rlhf_data import draw_rows
from rlhf_testing.errors import has_code


class Numbers:
    """Rows without an end, or so many."""

    def __init__(self, length=None, value=lambda number: number):
        self.length, self.value = length, value

    def rows(self, start):
        return ({"n": self.value(number)} for number in islice(count(start), self.left(start)))

    def left(self, start):
        return None if self.length is None else max(self.length - start, 0)

    def where(self, number):
        return f"numbers:row {number + 1}"


@pytest.mark.parametrize(("length", "drawn"), [(None, 5), (3, 3)])
def test_a_file_has_the_first_rows_and_none_again(tmp_path, length, drawn):
    path = tmp_path / "run" / "rows.jsonl"

    assert draw_rows(Numbers(length), "numbers", 5, path) == drawn

    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"n": number} for number in range(drawn)
    ]
    assert [file.name for file in path.parent.iterdir()] == ["rows.jsonl"]


def test_a_value_that_json_does_not_carry_is_named_by_its_row(tmp_path):
    source = Numbers(value=lambda number: b"x" if number == 2 else number)

    with pytest.raises(
        DataError,
        match=r"^numbers:row 3: expected values that JSON carries.*bytes",
        check=has_code("data/not-json"),
    ):
        draw_rows(source, "numbers", 5, tmp_path / "rows.jsonl")

    assert not (tmp_path / "rows.jsonl").exists()


def test_a_source_without_rows_is_refused(tmp_path):
    with pytest.raises(
        DataError,
        match="numbers: expected at least one row, got none",
        check=has_code("data/no-rows"),
    ):
        draw_rows(Numbers(0), "numbers", 5, tmp_path / "rows.jsonl")

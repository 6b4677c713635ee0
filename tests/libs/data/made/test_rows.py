"""Rows that an environment makes: by index, or as a stream."""

import itertools

import pytest

from rlhf_core import DataError
from rlhf_data.made import rows as made
from rlhf_data.made.rows import made_rows
from rlhf_testing.errors import has_code

WHERE = "tasks of environment maze, split 'train'"


class Reader:
    """Gives a generator at each call, and counts calls and rows."""

    def __init__(self, length=None):
        self.length = length
        self.calls = self.made = 0

    def __call__(self):
        self.calls += 1
        numbers = itertools.count() if self.length is None else range(self.length)
        for number in numbers:
            self.made += 1
            yield {"key": number, "square": number**2}


def test_a_sequence_is_read_by_index_alone():
    read = []

    class Squares:
        def __len__(self):
            return 10**9

        def __iter__(self):
            raise AssertionError("a billion rows are not read one by one")

        def __getitem__(self, index):
            read.append(index)
            return {"square": index**2}

    rows = made_rows(Squares, WHERE)

    assert rows.size == 10**9
    assert rows.row(12345)["square"] == 12345**2
    assert read == [12345]


def test_an_endless_stream_is_read_no_further_than_it_is_needed():
    reader = Reader()
    rows = made_rows(reader, WHERE)

    assert rows.size is None
    assert [rows.row(number)["square"] for number in (0, 1, 5)] == [0, 1, 25]
    assert reader.made == 7, "one row to look at, six to use"


def test_a_stream_that_ends_begins_again():
    rows = made_rows(Reader(3), WHERE)

    assert [rows.row(number)["key"] for number in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_a_stream_can_be_entered_anywhere_and_gives_the_same():
    """A resumed run begins in the middle, and starts older tasks first."""
    through = made_rows(Reader(5), WHERE)
    expected = [dict(through.row(number)) for number in range(23)]

    for start in range(23):
        rows = made_rows(Reader(5), WHERE)
        assert [rows.row(number) for number in range(start, 23)] == expected[start:]


def test_of_a_stream_the_last_rows_are_kept_and_older_ones_found_again(monkeypatch):
    monkeypatch.setattr(made, "KEPT", 10)
    reader = Reader()
    rows = made_rows(reader, WHERE)
    for number in range(100):
        rows.row(number)

    assert rows.row(95)["key"] == 95
    assert reader.calls == 2, "once to look at the first row, once to read"
    assert rows.row(3)["key"] == 3
    assert rows.row(99)["key"] == 99
    assert reader.calls == 3


def test_a_limit_gives_a_stream_a_length_and_a_sequence_its_first_rows():
    reader = Reader()

    assert made_rows(reader, WHERE, 4).size == 4
    assert reader.made == 4
    assert made_rows(lambda: [{}, {}, {}], WHERE, 2).size == 2
    assert made_rows(Reader(3), WHERE, 7).size == 3


def test_a_split_that_is_not_there_is_a_key_error_also_from_a_generator():
    def generator():
        yield from {"train": [{}]}["eval"]

    def plain():
        return {"train": [{}]}["eval"]

    for read in (generator, plain):
        with pytest.raises(KeyError):
            made_rows(read, WHERE)


@pytest.mark.parametrize(
    ("rows", "said", "code"),
    [
        ([], "at least one task, got none", "data/no-rows"),
        (7, "a sequence or an iterable of rows, got int 7", "data/not-rows"),
        ("rows", "a sequence or an iterable of rows, got str 'rows'", "data/not-rows"),
        ({"key": 1}, "a sequence or an iterable of rows, got dict", "data/not-rows"),
    ],
)
def test_what_is_no_collection_of_rows_is_refused(rows, said, code):
    with pytest.raises(DataError, match=rf"maze.*{said}", check=has_code(code)):
        made_rows(lambda: rows, WHERE)


@pytest.mark.parametrize("as_stream", [False, True])
@pytest.mark.parametrize(
    ("row", "said", "code"),
    [
        ("text", "task 1: expected a row, .* got str 'text'", "data/row-no-mapping"),
        ({1: 2}, "task 1: expected a row", "data/row-no-mapping"),
        (
            {"key": 1.5},
            "task 1: expected text or a whole number as its key, got float 1.5",
            "data/task-key",
        ),
        ({"key": True}, "as its key, got bool True", "data/task-key"),
        ({"key": "a"}, "tasks 0 and 1 both have the key 'a'", "data/repeated-key"),
    ],
)
def test_bad_rows_are_errors_that_name_the_task(row, said, as_stream, code):
    given = [{"key": "a"}, row]
    rows = made_rows((lambda: iter(given)) if as_stream else (lambda: given), WHERE)
    rows.row(0)

    with pytest.raises(DataError, match=f"maze.*{said}", check=has_code(code)):
        rows.row(1)


def test_an_exception_of_the_environments_code_is_an_error_with_its_text():
    def broken():
        yield {}
        raise ValueError("no file levels.txt")

    rows = made_rows(broken, WHERE)
    with pytest.raises(
        DataError,
        match=r"maze.*ValueError: no file levels\.txt",
        check=has_code("environment/tasks-raised"),
    ):
        rows.row(1)


def test_a_stream_without_any_row_is_refused():
    with pytest.raises(
        DataError, match="at least one task, got none", check=has_code("data/no-rows")
    ):
        made_rows(lambda: iter(()), WHERE)

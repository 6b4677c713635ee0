"""Rows of a data source: passes over a source that grows, resuming anywhere, and rows that change."""

import json
import re

import pytest

from rlhf_core.errors import DataError, PluginError
from rlhf_data.made import source_rows
from rlhf_data.made.source_rows import SourceRows
from rlhf_testing.errors import has_code

WHO = "--data.source listed (rlhf-plugin-mine 1.2.0)"


class Listed:
    """Rows of a list, which a test may change."""

    def __init__(self, *values):
        self.values = list(values)
        self.starts = []

    def rows(self, start):
        self.starts.append(start)
        number = start
        while number < len(self.values):
            yield {"value": self.values[number]}
            number += 1

    def where(self, number):
        return f"list:{number + 1}"


def rows_of(*values):
    source = Listed(*values)
    return source, SourceRows(source, WHO)


def values(rows, numbers):
    return [rows.row(number)["value"] for number in numbers]


def resumed(source, rows):
    again = SourceRows(Listed(*source.values), WHO)
    again.load_state_dict(json.loads(json.dumps(rows.state_dict())))
    return again


def test_rows_that_end_begin_again():
    _, rows = rows_of("a", "b", "c")

    assert values(rows, range(8)) == ["a", "b", "c", "a", "b", "c", "a", "b"]
    assert rows.where(7) == "list:2"
    assert rows.size is None


def test_rows_are_read_once_in_order():
    source, rows = rows_of(*range(50))

    values(rows, range(50))
    values(rows, [3, 17])

    assert source.starts == [0]


def test_a_pass_has_the_rows_that_there_are_when_it_ends():
    source, rows = rows_of("a", "b")

    assert values(rows, range(3)) == ["a", "b", "a"]
    source.values.append("c")
    assert values(rows, range(3, 7)) == ["b", "c", "a", "b"]


@pytest.mark.parametrize("stop", range(1, 12))
def test_a_resumed_run_reads_what_the_whole_run_reads_also_of_a_source_that_grew(stop):
    source, rows = rows_of("a", "b")
    first = values(rows, range(3))
    source.values.append("c")
    values(rows, range(3, stop))
    again = resumed(source, rows)
    expected = values(rows, range(stop, 15))

    assert values(again, range(stop, 15)) == expected
    # Rows of groups that were under way are asked for again.
    assert values(again, range(min(stop, 3))) == first[:stop]


def test_rows_that_were_appended_change_nothing_for_a_resumed_run():
    source, rows = rows_of(*"abcd")
    values(rows, range(2))
    source.values += "efgh"

    assert values(resumed(source, rows), range(2, 9)) == [*"cdefgh", "a"]


@pytest.mark.parametrize(
    ("now", "place"),
    [
        (["a", "B", "c", "d"], "list:2"),  # changed
        (["b", "c", "d"], "list:1"),  # taken out at the front
        (["a", "b", "new", "c", "d"], "list:3"),  # put in between
    ],
)
def test_rows_that_were_changed_are_named_at_the_resume(now, place):
    source, rows = rows_of(*"abcd")
    values(rows, range(3))
    source.values = now

    with pytest.raises(
        DataError, match=f"^{place}: .*{re.escape(WHO)}", check=has_code("data/changed-rows")
    ):
        resumed(source, rows)


def test_rows_that_are_gone_are_named_at_the_resume():
    source, rows = rows_of(*"abcd")
    values(rows, range(3))
    del source.values[2:]

    with pytest.raises(DataError, match=r"^list:3", check=has_code("data/lost-rows")):
        resumed(source, rows)


def test_a_row_that_changes_while_it_is_read_again_is_named():
    source, rows = rows_of("a", "b", "c")
    values(rows, range(4))
    source.values[1] = "B"

    with pytest.raises(DataError, match=r"^list:2: ", check=has_code("data/changed-rows")):
        rows.row(4)


def test_rows_are_found_again_when_they_are_not_kept(monkeypatch):
    monkeypatch.setattr(source_rows, "KEPT", 4)
    monkeypatch.setattr(source_rows, "SAVED", 3)
    source, rows = rows_of(*range(20))
    values(rows, range(20))

    assert values(rows, [2, 19, 3]) == [2, 19, 3]
    assert [number for number, _ in rows.state_dict()["digests"]] == [19, 2, 3]
    assert source.starts == [0, 2]  # 19 was kept, and 3 comes after 2


def test_a_number_far_ahead_is_found_pass_by_pass():
    _, rows = rows_of("a", "b", "c")

    assert rows.row(3 * 7 + 1)["value"] == "b"


def test_a_source_without_rows_is_named():
    with pytest.raises(
        DataError,
        match=r"listed \(rlhf-plugin-mine 1.2.0\): expected at least one",
        check=has_code("data/no-rows"),
    ):
        rows_of()[1].row(0)


def test_what_is_no_row_is_named_by_its_place():
    source, rows = rows_of("a")
    source.rows = lambda start: iter([{"value": 1}, "text"][start:])

    with pytest.raises(
        DataError, match=r"^list:2.*mine 1\.2\.0\).*\(str\)", check=has_code("data/row-no-mapping")
    ):
        values(rows, range(2))


def test_a_source_that_cannot_go_on_from_a_number_is_named():
    source, rows = rows_of("a", "b", "c")
    source.rows = lambda start: iter([] if start else [{"value": value} for value in "abc"])

    with pytest.raises(
        PluginError,
        match=r"rows\(2\).*rows\(0\) gives 3 rows",
        check=has_code("plugin/source-stopped"),
    ):
        rows.row(2)


def test_an_error_of_the_sources_code_names_the_source():
    source, rows = rows_of("a")
    source.rows = lambda start: 1 / 0

    with pytest.raises(
        PluginError,
        match=r"listed \(rlhf-plugin-mine 1.2.0\): it raised ZeroDiv",
        check=has_code("plugin/raised"),
    ):
        rows.row(0)

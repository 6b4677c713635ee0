"""Checks of data sources (``contracts.DataSource``). They read the first rows alone, since there may be no end."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterable, Mapping
from itertools import islice, zip_longest
from typing import Any

from rlhf_core.contracts.data.source import DataSource
from rlhf_core.errors import DataError
from rlhf_data.made.source_rows import SourceRows

from ...subject import Subject, checks_in

FIRST = 24
"""Rows that are looked at."""
FAR = 300
"""Rows among which some are looked at, behind the ends of small shards."""


def _first(source: DataSource, start: int = 0, count: int = FIRST) -> list[Mapping[str, Any]]:
    return list(islice(source.rows(start), count))


def check_rows_are_mappings(subject: Subject) -> None:
    """There is at least one row, and rows are mappings from names to values."""
    rows = _first(subject.make())
    assert rows, "no rows, expected at least one"
    for number, row in enumerate(rows):
        assert isinstance(row, Mapping), f"row {number} is a {type(row).__name__}"
        wrong = [name for name in row if not isinstance(name, str)]
        assert not wrong, f"row {number} has the column {wrong[0]!r}, expected names that are text"


def check_rows_go_on_from_any_number(subject: Subject) -> None:
    """``rows(start)`` gives the rows from that number on, as a resumed run asks for them."""
    rows = _first(subject.make())
    for start in range(len(rows)):
        for source in (subject.make(), _read_before(subject)):
            found = _first(source, start, len(rows) - start)
            assert _texts(found) == _texts(rows[start:]), (
                f"rows({start}): {found[:1]}, expected {rows[start]}"
            )


def check_far_rows_are_found(subject: Subject) -> None:
    """``rows(start)`` gives the rows from that number on also far behind the first ones, where a shard has ended."""
    rows = _first(subject.make(), 0, FAR)
    for start in range(FIRST, len(rows), 69):
        found = _first(subject.make(), start, len(rows) - start)
        pairs = enumerate(zip_longest(_texts(found), _texts(rows[start:])))
        wrong = [at for at, (one, other) in pairs if one != other]
        assert not wrong, (
            f"rows({start}): row {start + wrong[0]} is {found[wrong[0] : wrong[0] + 1]}; by rows(0) it is "
            f"{rows[start + wrong[0]]}"
        )


def check_rows_are_kept_apart(subject: Subject) -> None:
    """A row stays what it was while the next ones are read: a run keeps rows whose samples are under way."""
    rows, before = [], []
    for row in islice(subject.make().rows(0), FIRST):
        rows.append(row)
        before.append(copy.deepcopy(row))
    for number, (row, was) in enumerate(zip(rows, before, strict=True)):
        assert _texts([row]) == _texts([was]), (
            f"row {number} was {was}, and is {row} after later rows were read; yield a new object for each row"
        )


def check_global_randomness_is_left_alone(subject: Subject) -> None:
    """Reading seeds no generator that others draw from."""
    before = random.getstate()
    try:
        left = []
        for start in (1, 2):
            random.seed(start)
            _first(subject.make())
            left.append(random.getstate())
    finally:
        random.setstate(before)
    assert left[0] != left[1], (
        "reading rows seeds Python's global random generator, from which others draw too. Draw from a generator of the "
        "source's own: random.Random(seed)"
    )


def check_rows_stay_the_same(subject: Subject) -> None:
    """Every reading gives the same rows, by the digests with which a run compares them too."""
    source = subject.make()
    rows = _first(source)
    for name, found in (("again", _first(source)), ("another instance", _first(subject.make()))):
        assert _texts(found) == _texts(rows), f"{name}: {found[:1]}, expected {rows[:1]}"
    state = _read_by_a_run(subject, len(rows)).state_dict()
    resumed = SourceRows(subject.make(), subject.label)
    try:
        resumed.load_state_dict(state)
    except DataError as error:
        raise AssertionError(f"a resumed run would stop: {error}") from error


def check_the_end_is_quiet(subject: Subject) -> None:
    """Behind the last row of a source that ends there is nothing, from any number on."""
    rows = _first(subject.make(), 0, FAR)
    if len(rows) == FAR:
        return
    for start in (len(rows), len(rows) + 1, len(rows) + 100):
        found = _first(subject.make(), start)
        assert not found, f"rows({start}) gives {found[0]}, but rows(0) has {len(rows)} rows"


def check_readings_do_not_disturb_each_other(subject: Subject) -> None:
    """Two readings of one source at a time give the same rows: one of them looks an older row up."""
    source = subject.make()
    expected = _first(source)
    first, second = iter(source.rows(0)), iter(source.rows(0))
    for number, row in enumerate(expected):
        for found in (next(first, None), next(second, None)):
            assert _texts([found]) == _texts([row]), (
                f"row {number} is {found} while another reading goes on, not {row}"
            )


def check_places_name_rows(subject: Subject) -> None:
    """Each row has a place of its own in messages, a short text."""
    source = subject.make()
    places = [source.where(number) for number in range(len(_first(source, 0, FAR)))]
    for place in places:
        assert isinstance(place, str), f"{place!r}, expected text"
        assert 0 < len(place) <= 500, f"a place of {len(place)} characters: {place[:80]!r}"
        assert "\n" not in place, f"{place!r}, expected one line"
    again = [number for number, place in enumerate(places) if places.index(place) < number]
    assert not again, (
        f"rows {places.index(places[again[0]])} and {again[0]} both have the place {places[again[0]]!r}"
    )


def _texts(rows: Iterable[object]) -> list[str]:
    """Return rows as texts, as a run's digests have them: arrays have no truth value, and NaN equals nothing."""
    return [json.dumps(row, sort_keys=True, default=repr) for row in rows]


def _read_before(subject: Subject) -> DataSource:
    source: DataSource = subject.make()
    _first(source, 0, 3)
    return source


def _read_by_a_run(subject: Subject, count: int) -> SourceRows:
    rows = SourceRows(subject.make(), subject.label)
    for number in range(count):
        rows.row(number)
    return rows


CHECKS = checks_in(__name__)

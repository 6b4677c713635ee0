"""Data sources that break one promise each, and what catches them."""

import itertools
import random

import pytest

from rlhf_testing.conformance import run_checks


class Ten:
    """Ten rows."""

    def rows(self, start):
        return iter([{"n": n} for n in range(start, 10)])

    def where(self, number):
        return f"row {number}"


class IgnoresTheStart(Ten):
    def rows(self, start):
        return super().rows(0)


class CountsFromOne(Ten):
    def rows(self, start):
        return super().rows(max(0, start - 1))


class WrapsAround(Ten):
    """Begins again by itself, so nobody sees where a pass ends."""

    def rows(self, start):
        return super().rows(start % 10)


class OneReading(Ten):
    """All readings share an iterator, as of an open file."""

    def __init__(self):
        self.shared = None

    def rows(self, start):
        if self.shared is None or start:
            self.shared = super().rows(start)
        return self.shared


class InterleavedReadings(Ten):
    """Readings share a position."""

    at = 0

    def rows(self, start):
        self.at = start
        while self.at < 10:
            self.at += 1
            yield {"n": self.at - 1}


class Drawn(Ten):
    """Rows are drawn anew at every reading."""

    def rows(self, start):
        return iter([{"n": random.random()} for _ in range(start, 10)])


class Stamped(Ten):
    """A column says how often rows were read: a clock would be the same."""

    readings = itertools.count()

    def rows(self, start):
        reading = next(self.readings)
        return iter([{"n": n, "read": reading} for n in range(start, 10)])


class ShuffledByInstance(Ten):
    def __init__(self):
        self.order = random.sample(range(10), 10)

    def rows(self, start):
        return iter([{"n": n} for n in self.order[start:]])


class Tuples(Ten):
    def rows(self, start):
        return iter([("n", n) for n in range(start, 10)])


class NumberedColumns(Ten):
    def rows(self, start):
        return iter([{0: n} for n in range(start, 10)])


class Empty(Ten):
    def rows(self, start):
        return iter([])


class OnePlace(Ten):
    def where(self, number):
        return "rows"


def caught_by(make):
    outcomes = run_checks("rlhf_data_sources", make)
    return {outcome.check for outcome in outcomes if outcome.failed}


def test_a_source_without_a_fault_passes():
    assert caught_by(Ten) == set()


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (IgnoresTheStart, "check_rows_go_on_from_any_number"),
        (CountsFromOne, "check_rows_go_on_from_any_number"),
        (WrapsAround, "check_the_end_is_quiet"),
        (OneReading, "check_rows_stay_the_same"),
        (InterleavedReadings, "check_readings_do_not_disturb_each_other"),
        (Drawn, "check_rows_stay_the_same"),
        (Stamped, "check_rows_stay_the_same"),
        (ShuffledByInstance, "check_rows_stay_the_same"),
        (Tuples, "check_rows_are_mappings"),
        (NumberedColumns, "check_rows_are_mappings"),
        (Empty, "check_rows_are_mappings"),
        (OnePlace, "check_places_name_rows"),
    ],
)
def test_a_fault_is_caught(wrong, check):
    assert check in caught_by(wrong)

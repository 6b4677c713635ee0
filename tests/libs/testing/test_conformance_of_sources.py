"""Data sources that break one promise each, and what catches them."""

import itertools
import math
import random

import numpy as np
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


class Shards:
    """Shards of 40 rows."""

    size, number = 40, 4

    def rows(self, start):
        return iter([{"n": [n]} for n in range(start, self.size * self.number)])

    def where(self, number):
        return f"shard {number // self.size}, row {number % self.size}"


class DropsARowAtAShard(Shards):
    """Who starts in a later shard misses a row for each one before."""

    def rows(self, start):
        return super().rows(start + start // self.size)


class StopsWithTheShard(Shards):
    def rows(self, start):
        rows = super().rows(start)
        return itertools.islice(rows, self.size - start % self.size) if start else rows


class BeginsAgainInALaterShard(Shards):
    def rows(self, start):
        return super().rows(start if start < self.size * self.number else 0)


class RowsOfAShardHaveOnePlace(Shards):
    def where(self, number):
        return f"shard {number // self.size}, row {min(number, self.size - 1)}"


class Arrays(Ten):
    """Rows with values that JSON does not have are allowed."""

    def rows(self, start):
        return iter([{"n": np.full(3, n), "score": math.nan} for n in range(start, 10)])


class OneObject(Ten):
    def rows(self, start):
        row = {}
        for each in super().rows(start):
            row.update(each)
            yield row


class OneList(Ten):
    def rows(self, start):
        tags = []
        for each in super().rows(start):
            tags[:] = [each["n"]]
            yield each | {"tags": tags}


class SeedsEveryone(Ten):
    def rows(self, start):
        random.seed(0)
        return super().rows(start)


def caught_by(make):
    outcomes = run_checks("rlhf_data_sources", make)
    return {outcome.check for outcome in outcomes if outcome.failed}


@pytest.mark.parametrize("right", [Ten, Shards, Arrays])
def test_a_source_without_a_fault_passes(right):
    assert caught_by(right) == set()


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
        (DropsARowAtAShard, "check_far_rows_are_found"),
        (StopsWithTheShard, "check_far_rows_are_found"),
        (BeginsAgainInALaterShard, "check_the_end_is_quiet"),
        (RowsOfAShardHaveOnePlace, "check_places_name_rows"),
        (OneObject, "check_rows_are_kept_apart"),
        (OneList, "check_rows_are_kept_apart"),
        (SeedsEveryone, "check_global_randomness_is_left_alone"),
    ],
)
def test_a_fault_is_caught(wrong, check):
    assert check in caught_by(wrong)

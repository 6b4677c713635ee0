"""Whoever waits for a large set to be read learns how far it is."""

import logging

from rlhf_data.files import pace
from rlhf_data.files.pace import with_progress


def test_a_long_reading_says_how_far_it_is_now_and_then(monkeypatch, caplog):
    """A row takes 8 s here: the line comes at 16 s, as the first row after 10 s, and then 32 s later."""
    seconds = iter(range(0, 10_000, 8))
    monkeypatch.setattr(pace.time, "monotonic", lambda: next(seconds))

    with caplog.at_level(logging.INFO, logger=pace.log.name):
        assert list(with_progress(range(7), 1234, "rows")) == list(range(7))

    assert [record.getMessage() for record in caplog.records] == [
        "rows: reading rows and making tokens of them, 1 of 1,234 so far, in 16 s",
        "rows: reading rows and making tokens of them, 5 of 1,234 so far, in 48 s",
    ]


def test_a_short_one_says_nothing(caplog):
    with caplog.at_level(logging.INFO):
        assert list(with_progress(iter("abc"), 3, "rows")) == ["a", "b", "c"]

    assert not caplog.records

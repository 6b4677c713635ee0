"""What takes long says so, what does not is silent, and commands with models do it around their transforms."""

import time

import pytest
from tests.deadlines import HANG_S

from rlhf_core import long_work
from rlhf_core.long_work import log_if_long


def wait_for_lines(caplog, count):
    deadline = time.monotonic() + HANG_S
    while len(caplog.messages) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_long_work_is_told_again_and_again_and_no_more_when_it_is_over(caplog, monkeypatch):
    monkeypatch.setattr(long_work, "FIRST_S", 0.01)
    monkeypatch.setattr(long_work, "EVERY_S", 0.01)
    with log_if_long("merging x"):
        wait_for_lines(caplog, 2)

    told = list(caplog.messages)
    time.sleep(0.05)
    assert caplog.messages == told
    assert all(line == "merging x: 0 s so far" or line.startswith("merging x: ") for line in told)


def test_short_work_and_a_failure_are_silent(caplog):
    with pytest.raises(ValueError, match="broken"), log_if_long("merging x"):
        raise ValueError("broken")

    assert caplog.messages == []


def test_the_first_line_comes_in_seconds():
    assert long_work.FIRST_S <= 10.0

"""The length of bursts follows how often rows finish."""

from __future__ import annotations

from rlhf_plugin_local.engine.resident.bursts import FEWEST, MOST, BurstLength


def test_a_burst_is_never_longer_than_what_is_left_to_write():
    assert BurstLength().next(1) == 1
    assert BurstLength().next(1000) == FEWEST


def test_bursts_grow_while_nothing_finishes_and_shrink_when_much_does():
    length = BurstLength()
    for _ in range(10):
        length.seen(0, 64)
    assert length.next(1000) == MOST

    length.seen(4, 64)  # one in 16: as long as before
    assert length.next(1000) == MOST
    for expected in (MOST // 2, MOST // 4, FEWEST, FEWEST):
        length.seen(5, 64)
        assert length.next(1000) == expected

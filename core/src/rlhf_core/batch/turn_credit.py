"""Credit of turns in episodes of several rows: turns in the order of the episode, not of their rows.

Axes as in ``trajectory_columns``. Where each episode has one row, a turn's number is its index in the row, and nothing
is earned elsewhere: all amounts are exactly 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..lazy import NDArray, np
from .ragged import offsets_of
from .trajectory_columns import TrajectoryColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCredit:
    """The turns of a batch in the order in which the policy answered in their episodes."""

    number: NDArray[np.int64]
    """(U,) index of each turn in its episode, from 0."""
    meanwhile: NDArray[np.float64]
    """(U,) what turns of the episode's other rows earned between a turn and the next one of its row; 0 at the row's
    last turn, after which the row's own ``reward`` stands."""
    before: NDArray[np.float64]
    """(B,) what turns of the episode's other rows earned before the row's last turn. It is a part of ``reward``, which
    has the turn rewards of all other rows, and no turn after it earned it."""


def turn_credit(batch: TrajectoryColumns) -> TurnCredit:
    """Return the order of the batch's turns, and what other rows earned between them."""
    row = np.repeat(np.arange(len(batch)), batch.num_turns)  # (U,)
    episode = batch.episode[row]  # (U,)
    # Stable: turns of equal places keep the order of their rows.
    order = np.lexsort((batch.turn_places, episode))
    starts = np.flatnonzero(np.diff(episode[order], prepend=-1))  # where each episode begins
    sizes = np.diff(starts, append=len(order))
    number, earned_before = np.empty_like(order), np.empty(len(order), dtype=np.float64)
    number[order] = np.arange(len(order)) - np.repeat(starts, sizes)
    earned = batch.turn_rewards[order].astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(earned)[:-1]])
    earned_before[order] = sums - np.repeat(sums[starts], sizes)

    first, last = offsets_of(batch.num_turns)[:-1], offsets_of(batch.num_turns)[1:] - 1
    gap = np.zeros(len(order), dtype=np.float64)
    gap[:-1] = earned_before[1:] - earned_before[:-1] - batch.turn_rewards[:-1]
    gap[last] = 0.0
    # Differences of sums are rounded: where no other row was asked in between, nothing was earned.
    follows = np.diff(number, append=0) == 1
    gap[follows] = 0.0
    inner = np.bincount(row, weights=gap, minlength=len(batch)).astype(np.float64)  # (B,)
    outer = np.where(number[first] > 0, earned_before[first], 0.0)
    return TurnCredit(number=number, meanwhile=gap, before=inner + outer)

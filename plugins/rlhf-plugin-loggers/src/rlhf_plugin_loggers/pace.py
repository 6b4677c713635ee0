"""The estimate of a run's remaining time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW = 50
"""Number of steps over which the pace is measured."""


class Pace:
    """Estimates the seconds left from the last steps of this process, evaluations and checkpoints included.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(
        self, start_step: int, total_steps: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total_steps
        self._clock = clock
        self._marks = deque([(start_step, clock())], maxlen=WINDOW)

    def step(self, step: int) -> None:
        """Note that ``step`` is done."""
        self._marks.append((step, self._clock()))

    def seconds_left(self) -> float | None:
        """Return the seconds until the last step; None before this process's first step has ended."""
        (first, began), (last, ended) = self._marks[0], self._marks[-1]
        if last == first:
            return None
        return (ended - began) / (last - first) * (self._total - last)

"""The estimate of a run's remaining time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW = 50
"""Number of steps over which the pace is measured."""
FEWEST = 2
"""Steps that are measured at least, behind the first step of a process, which compiles and loads: it may take a hundred
times as long as those behind it."""


class Pace:
    """Estimates the seconds left from the last steps of this process, evaluations and checkpoints included.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, total_steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total_steps
        self._clock = clock
        self._marks: deque[tuple[int, float]] = deque(maxlen=WINDOW)

    def step(self, step: int) -> None:
        """Note that ``step`` is done."""
        self._marks.append((step, self._clock()))

    def seconds_left(self) -> float | None:
        """Return the seconds until the last step; None before ``FEWEST`` steps behind this process's first."""
        if len(self._marks) <= FEWEST:
            return None
        (first, began), (last, ended) = self._marks[0], self._marks[-1]
        return (ended - began) / (last - first) * (self._total - last)

"""Progress as lines of text, for log files and pipes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .pace import Pace
from .wording import duration, eval_words, note_line, step_words

if TYPE_CHECKING:
    from rlhf_core.contracts import RunInfo, RunResult

MIN_INTERVAL_S, MAX_INTERVAL_S = 2.0, 60.0
"""Bounds of the seconds between two lines about steps."""
SHARE_OF_RUN = 0.01
"""Seconds between two lines as a share of the run's time so far, so that a long run writes more rarely."""


class PlainProgress:
    """Writes a line about the first step, the last step, every evaluated step, and other steps at a readable pace.

    Args:
        write: writes one line.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        start_step: int,
        total_steps: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._clock = clock
        self._first = start_step + 1
        self._total = total_steps
        self._pace = Pace(total_steps, clock)
        self._began = self._wrote = clock()
        self._held: str | None = None
        """Line about the newest step; None if this line was written."""

    def run_start(self, run: RunInfo) -> None:
        """Write the run's folder, number of steps and notes."""
        resumed = f", going on after step {run.start_step}" if run.start_step else ""
        self._emit(f"{run.output}: {run.total_steps} steps{resumed}")
        for note in run.notes:
            self._emit(note_line(note))

    def step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a line about the step, or hold the line if the line before is too recent."""
        self._pace.step(step)
        left = self._pace.seconds_left()
        words = [f"step {step}/{self._total}", *step_words(metrics)]
        if left is not None and step < self._total:
            words.append(f"{duration(left)} left")
        self._held = "  ".join(words)
        due = self._clock() - self._wrote >= self._interval()
        if due or step in (self._first, self._total):
            self._release()

    def eval_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the held line and a line about an evaluation."""
        self._release()
        if words := eval_words(metrics):
            self._emit(f"step {step}/{self._total}  evaluation: {', '.join(words)}")

    def checkpoint_saved(self, step: int, path: Path) -> None:
        """Write the held line and a line about a checkpoint."""
        self._release()
        self._emit(f"step {step}/{self._total}  checkpoint: {path}")

    def run_end(self, result: RunResult) -> None:
        """Write the held line."""
        self._release()

    def _interval(self) -> float:
        elapsed = self._clock() - self._began
        return min(MAX_INTERVAL_S, max(MIN_INTERVAL_S, SHARE_OF_RUN * elapsed))

    def _release(self) -> None:
        if self._held is not None:
            self._emit(self._held)
            self._held = None
            self._wrote = self._clock()

    def _emit(self, line: str) -> None:
        self._write(line)

"""Progress as one line that is rewritten in place. Lines about evaluations and checkpoints stay above this line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from .pace import Pace
from .wording import duration, eval_words, note_line, step_words

if TYPE_CHECKING:
    from rlhf_core.contracts import RunInfo, RunResult

BAR_WIDTH = 10
REFRESHES_PER_S = 4


class LiveProgress:
    """Draws the line until the end of the run. The line's clock also runs between steps.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        console: Console,
        start_step: int,
        total_steps: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._total = total_steps
        self._clock = clock
        self._began = clock()
        self._pace = Pace(total_steps, clock)
        self._step = start_step
        self._words: list[str] = []
        self._live = Live(
            self, console=console, refresh_per_second=REFRESHES_PER_S, vertical_overflow="visible"
        )

    def run_start(self, run: RunInfo) -> None:
        """Print the run's notes, and draw the line."""
        for note in run.notes:
            self._console.print(Text(note_line(note), style="dim"), soft_wrap=True)
        self._live.start()

    def step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the step's metrics in the line."""
        self._pace.step(step)
        self._step = step
        self._words = step_words(metrics)

    def eval_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print a line about an evaluation."""
        if words := eval_words(metrics):
            self._console.print(Text(f"step {step}  evaluation: {', '.join(words)}"))

    def checkpoint_saved(self, step: int, path: Path) -> None:
        """Print a line about a checkpoint."""
        self._console.print(Text(f"step {step}  checkpoint: {path}"), soft_wrap=True)

    def run_end(self, result: RunResult) -> None:
        """Stop to redraw the line."""
        self._live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._line(options.max_width, ascii_only=options.ascii_only)

    def _line(self, width: int, *, ascii_only: bool = False) -> Text:
        """Return the line for a width in characters. The least important words that do not fit are left out."""
        done, todo = ("#", "-") if ascii_only else ("━", "─")
        filled = BAR_WIDTH * self._step // max(self._total, 1)
        line = Text(no_wrap=True, overflow="crop")
        line.append(f"{self._step}/{self._total} ")
        line.append(done * filled, style="green").append(todo * (BAR_WIDTH - filled), style="dim")
        for index, word in enumerate([self._clock_words(), *self._words]):
            if line.cell_len + 2 + len(word) > width:
                break
            line.append("  ").append(word, style="cyan" if index == 0 else "")
        return line

    def _clock_words(self) -> str:
        left = self._pace.seconds_left()
        if left is None:
            return f"{duration(self._clock() - self._began)}, first step is running"
        return f"{duration(left)} left"

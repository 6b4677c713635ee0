"""The state of the work on the terminal: a bar, or a line now and then where output is no terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType


class WorkProgress:
    """Context that shows how many prompts are done, and the rate; on stderr.

    Args:
        wanted: the option ``log.progress``.
        done: prompts that were done before.
        unit: what a prompt gives several of, in the plural.
        every_s: seconds between two lines.
    """

    def __init__(
        self,
        wanted: str,
        *,
        total: int,
        done: int,
        unit: str = "completions",
        every_s: float = 10.0,
    ) -> None:
        self._is_live = wanted == "live" or (wanted == "auto" and sys.stderr.isatty())
        self._bar: _Bar | None = None
        self._every_s = every_s
        self._is_silent = wanted == "off"
        self.done = done
        """Prompts that are written."""
        self.total = total
        """Prompts in all, those of before included."""
        self._unit = unit
        self._units = self._tokens = 0
        self._begin = self._shown = time.monotonic()

    def __enter__(self) -> WorkProgress:
        if self._is_live:
            self._bar = _Bar(self.total, self.done)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def add(self, units: int, tokens: int) -> None:
        """Count a prompt that is written, what it gave, and the tokens of that."""
        self.done += 1
        self._units += units
        self._tokens += tokens
        if self._bar is not None:
            self._bar.show(self.done, self.rate())
        elif not self._is_silent and time.monotonic() - self._shown >= self._every_s:
            self._shown = time.monotonic()
            print(f"{self.done}/{self.total} prompts, {self.rate()}", file=sys.stderr, flush=True)

    def rate(self) -> str:
        """Return what was made per second since the start."""
        seconds = max(time.monotonic() - self._begin, 1e-9)
        return (
            f"{self._units / seconds:,.1f} {self._unit}/s, {self._tokens / seconds:,.0f} tokens/s"
        )


class _Bar:
    """Rich's progress bar."""

    def __init__(self, total: int, done: int) -> None:
        # Imported here: only a terminal needs it.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("prompts"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task("prompts", total=total, completed=done, rate="")
        self._progress.start()

    def show(self, done: int, rate: str) -> None:
        self._progress.update(self._task, completed=done, rate=rate)

    def stop(self) -> None:
        self._progress.stop()

"""Doing the steps of a run again, up to the end of a span."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from rlhf_cli.training import TrainingCommand, function_of
from rlhf_config import ResolvedOptions
from rlhf_core.contracts import RunResult
from rlhf_core.plugins import Plugins

from .behavior import Behavior


class _Counted(Protocol):
    """The part of a run's state that the end of a span depends on."""

    step: int


@dataclass(slots=True)
class EndOfSpan:
    """Control of a run (``rlhf_trainer.runs.Control``) that ends it behind a step."""

    last: int
    heard: Behavior | None = None
    """Told which step is being done."""
    stop_reason: str | None = None

    def began(self, task: asyncio.Task[Any]) -> None:
        """Do nothing: a replay is not cancelled from outside."""

    async def before_step(self, state: _Counted) -> None:
        """Say which step begins, and ask for the end where the span's last step is done."""
        if self.heard is not None:
            self.heard.step = state.step + 1
        if state.step >= self.last:
            self.stop_reason = "the end of the span"


def play(
    command: TrainingCommand[Any],
    resolved: ResolvedOptions[Any],
    plugins: Plugins,
    last: int,
    heard: Behavior | None = None,
) -> None:
    """Do the run's steps up to ``last``; its records and a checkpoint of each step are in its folder.

    Args:
        heard: told before each step which one it is.

    Raises:
        RLHFError: the run could not start, or failed.
        KeyboardInterrupt: a signal ended it before, so that there is nothing to compare.
    """
    result: RunResult = function_of(command.run)(resolved, plugins, EndOfSpan(last, heard))
    if result.steps < last:
        raise KeyboardInterrupt

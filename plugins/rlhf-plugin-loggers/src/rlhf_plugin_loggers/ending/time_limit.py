"""End of a run after a number of hours, those before a resume included.

The clock runs from the start of the first step: steps, evaluations and checkpoints count, building the run does not. Of
a process that was killed the hours up to its last checkpoint count. The run ends with the step during which the limit
is reached, so it is longer than the limit by up to one step and what its end takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import EndRun, Observer, RunInfo

HOUR_S = 3600.0


class TimeLimitConfig(Config):
    """The limit."""

    hours: float = Field(
        24.0,
        gt=0.0,
        description="hours of training after which the run ends, including those before a resume",
    )


class TimeLimit(Observer):
    """Ends a run by the clock. State: the seconds so far.

    Args:
        clock: seconds since any moment.
    """

    def __init__(
        self, config: TimeLimitConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config = config
        self._clock = clock
        self._before_s = 0.0
        self._began_s: float | None = None

    def run_start(self, run: RunInfo) -> None:
        """Start the clock."""
        self._began_s = self._clock()

    def step_end(self, step: int, metrics: Mapping[str, float]) -> EndRun | None:
        """End the run if the time is up."""
        return self._judged()

    def eval_end(self, step: int, metrics: Mapping[str, float]) -> EndRun | None:
        """End the run if the time is up."""
        return self._judged()

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds so far."""
        return {"seconds": self._seconds()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Count the seconds of the processes before."""
        self._before_s = float(state["seconds"])

    def _seconds(self) -> float:
        here_s = 0.0 if self._began_s is None else self._clock() - self._began_s
        return self._before_s + here_s

    def _judged(self) -> EndRun | None:
        hours = self._seconds() / HOUR_S
        if hours < self.config.hours:
            return None
        return EndRun(reason=f"{hours:.3g} hours have passed, of {self.config.hours:g}")


COMPONENT = Component(
    name="time_limit",
    factory=TimeLimit,
    config=TimeLimitConfig,
    summary="ends a run after a number of hours",
)

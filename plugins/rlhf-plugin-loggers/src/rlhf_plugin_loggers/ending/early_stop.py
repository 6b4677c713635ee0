"""End of a run whose metric has reached a target, or has not become better for some time.

With mode ``max`` a value v is better than the best one b so far if v > b + min_delta, with ``min`` if
v < b - min_delta. The run ends when ``patience`` values in a row are not better, or when one is at least as good as
``target``. Values that are NaN or infinite are never better.
"""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from rlhf_core import Component, Config
from rlhf_core.contracts import EndRun, Observer, RunResult

log = logging.getLogger(__name__)

EVALUATION = "eval/"
"""Beginning of the names of evaluations' metrics."""


class EarlyStopConfig(Config):
    """The metric, and what of it ends the run."""

    metric: str = Field(
        "reward/mean",
        min_length=1,
        description="name in metrics.jsonl: of each step, or of evaluations, such as eval/test/T0/pass@1",
    )
    mode: Literal["max", "min"] = Field("max", description="whether larger or smaller is better")
    patience: int = Field(
        100,
        ge=0,
        description="number of values in a row, of steps or evaluations, without a better one after which the run "
        "ends; 0: never",
    )
    min_delta: float = Field(
        0.0, ge=0.0, description="difference that a value has to exceed to count as better"
    )
    target: float | None = Field(
        None, description="value at which the run ends, or at any better one; unset: none"
    )

    @model_validator(mode="after")
    def _can_end_a_run(self) -> EarlyStopConfig:
        if self.patience == 0 and self.target is None:
            raise ValueError("patience is 0 and there is no target, so no run would end; set one")
        if self.patience == 0 and self.min_delta > 0.0:
            raise ValueError(
                f"patience is 0, so min_delta {self.min_delta:g} would change nothing; leave it out"
            )
        return self

    def metrics_named(self) -> Mapping[str, str]:
        """The metric that ends the run."""
        return {self.metric: "metric"}


def is_better(value: float, best: float | None, mode: str, min_delta: float = 0.0) -> bool:
    """Return whether a value is better than the best one so far, of which there may be none, by more than
    ``min_delta``."""
    if not math.isfinite(value):
        return False
    if best is None:
        return True
    return value > best + min_delta if mode == "max" else value < best - min_delta


def reaches(value: float, target: float, mode: str) -> bool:
    """Return whether a value is at least as good as a target; NaN is not."""
    return value >= target if mode == "max" else value <= target


class EarlyStop(Observer):
    """Ends a run by one metric. State: the best value, its step, and the number of values since then."""

    def __init__(self, config: EarlyStopConfig) -> None:
        self.config = config
        self._best: float | None = None
        self._best_step = 0
        self._since = 0
        self._listened = False
        self._seen = False
        self._warned = False

    def step_end(self, step: int, metrics: Mapping[str, float]) -> EndRun | None:
        """Take the value of a step, if the metric is one of steps."""
        return self._heard(step, metrics, of_evaluations=False)

    def eval_end(self, step: int, metrics: Mapping[str, float]) -> EndRun | None:
        """Take the value of an evaluation, if the metric is one of evaluations."""
        return self._heard(step, metrics, of_evaluations=True)

    def run_end(self, result: RunResult) -> None:
        """Say that the metric never came, which is likely a mistake."""
        missed = self._listened and not self._seen
        if missed and not self._warned and result.status == "finished":
            log.warning("early_stop: %s has never come, so it ended nothing", self.config.metric)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and how long ago it was, with what it is the best of."""
        return {
            "metric": self.config.metric,
            "mode": self.config.mode,
            "best": self._best,
            "best_step": self._best_step,
            "since": self._since,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting; values of another metric or mode are no use, and it starts over."""
        if (state["metric"], state["mode"]) == (self.config.metric, self.config.mode):
            self._best, self._best_step = state["best"], state["best_step"]
            self._since = state["since"]

    def _heard(
        self, step: int, metrics: Mapping[str, float], *, of_evaluations: bool
    ) -> EndRun | None:
        self._listened = True
        if self.config.metric.startswith(EVALUATION) is not of_evaluations:
            return None
        if self.config.metric not in metrics:
            self._warn(metrics)
            return None
        self._seen = True
        return self._judged(step, metrics[self.config.metric])

    def _judged(self, step: int, value: float) -> EndRun | None:
        config = self.config
        if is_better(value, self._best, config.mode, config.min_delta):
            self._best, self._best_step, self._since = value, step, 0
        else:
            self._since += 1
        if config.target is not None and reaches(value, config.target, config.mode):
            return EndRun(
                reason=f"{config.metric} is {value:.6g}, which reaches the target {config.target:g}"
            )
        if config.patience and self._since >= config.patience:
            best = (
                "none was finite"
                if self._best is None
                else f"the best is {self._best:.6g}, of step {self._best_step}"
            )
            return EndRun(
                reason=f"{config.metric} has not become better for {self._since} values; {best}"
            )
        return None

    def _warn(self, metrics: Mapping[str, float]) -> None:
        """Say once that the metric is missing: some come in some steps alone, most misses are misspelt."""
        if self._seen or self._warned:
            return
        self._warned = True
        near = difflib.get_close_matches(self.config.metric, list(metrics), n=3, cutoff=0.4)
        log.warning(
            "early_stop: %s is none of the metrics that came now. %s",
            self.config.metric,
            f"Near to it: {', '.join(near)}"
            if near
            else "metrics.jsonl in the run folder has them",
        )


COMPONENT = Component(
    name="early_stop",
    factory=EarlyStop,
    config=EarlyStopConfig,
    summary="ends a run whose metric reaches a target or stops improving",
)

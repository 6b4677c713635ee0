"""Options of checkpoints, which every command that trains has."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core.component import Config
from rlhf_core.contracts.functions.eval_metric import is_falling

from .bounds import NotNegative, Positive


class CheckpointConfig(Config):
    """When a run writes checkpoints, and which of them it keeps."""

    every: NotNegative = Field(
        0, description="number of steps between checkpoints; 0: every_minutes decides"
    )
    every_minutes: float = Field(
        10.0,
        ge=0.0,
        description="minutes between checkpoints, if every is 0; 0: only at the end, and when the run is stopped or "
        "fails",
    )
    at_end: bool = Field(
        True,
        description="write a checkpoint after the last step, from which a longer run can continue",
    )
    keep: Positive = Field(
        2, description="number of newest checkpoints to keep; the best one is kept too"
    )
    best_metric: str | None = Field(
        "auto",
        description="evaluation metric that tells the best checkpoint; auto: the reward of the first held-out set, "
        "or the loss of held-out rows; none: no best one is kept",
    )
    best_mode: Literal["auto", "max", "min"] = Field(
        "auto",
        description="whether the largest or the smallest value of best_metric is best; auto: the smallest for a "
        "loss, nll or perplexity, else the largest",
    )
    on_write_error: Literal["stop", "skip"] = Field(
        "stop",
        description="what happens if a checkpoint cannot be written: stop ends the run, skip goes on without it",
    )
    export: bool = Field(
        True, description="write the trained model as a Transformers folder at the end"
    )
    undo_gib: float = Field(
        1.0,
        ge=0.0,
        description="GiB of host memory, per role and rank, for a copy of the state before a step's updates, which "
        "is saved if the step fails; a larger role has no copy, nor has any with 0",
    )

    @property
    def named_metric(self) -> str | None:
        """The metric that ``best_metric`` names; None for ``auto`` and ``none``."""
        return None if self.best_metric == "auto" else self.best_metric

    def best(self, headline: str | None) -> tuple[str, Literal["max", "min"]] | None:
        """Return the metric by which a checkpoint is the best, and whether more of it is better; None: none is kept.

        Args:
            headline: the metric that ``auto`` means; None: the run evaluates nothing.
        """
        metric = headline if self.best_metric == "auto" else self.best_metric
        if metric is None:
            return None
        if self.best_mode != "auto":
            return metric, self.best_mode
        return metric, "min" if is_falling(metric) else "max"

    def described(self, *, evaluates: bool) -> str:
        """Return when checkpoints are written and which of them stay."""
        times = []
        if self.every:
            times.append(f"every {self.every} steps")
        elif self.every_minutes:
            times.append(f"every {self.every_minutes:g} minutes")
        if self.at_end:
            times.append("at the end")
        times.append("when the run is stopped or fails")
        best = " and the best one" if evaluates and self.best_metric is not None else ""
        return f"checkpoints {', '.join(times)}; the newest {self.keep}{best} are kept"

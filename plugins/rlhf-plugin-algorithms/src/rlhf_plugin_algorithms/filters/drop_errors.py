"""Filter of prompts whose samples ran into errors: a crashed sandbox says nothing about the answer."""

from __future__ import annotations

import difflib
import logging

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import RolloutInfo, TrajectoryColumns
from rlhf_core.lazy import np

log = logging.getLogger(__name__)


class DropErrorsConfig(Config):
    metric: str = Field(
        "error",
        min_length=1,
        description="name of the metric that is above 0 for a sample with an error",
    )
    max_share: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="largest share of a prompt's samples that may report an error, from 0 to 1",
    )


class DropErrors:
    """Sample filter that drops a group if more than ``max_share`` of its episodes report the metric above 0.

    An episode of several sequences reports an error if one of them does. A sample that does not report the metric has
    no error.
    """

    def __init__(self, config: DropErrorsConfig) -> None:
        self.config = config
        self._reported: set[str] = set()
        self._first_step: int | None = None
        self._said = False

    def keep(self, group: TrajectoryColumns, info: RolloutInfo) -> str | None:
        """Return None or ``errors``."""
        self._say_if_missing(group, info)
        reported = group.metrics.get(self.config.metric)
        if reported is None:
            return None
        episode = group.episode
        # NaN stands where a sample did not report the metric, and is not above 0.
        failed = np.bincount(episode, weights=reported > 0) > 0  # (E,) for E episodes
        return "errors" if failed.mean() > self.config.max_share else None

    def _say_if_missing(self, group: TrajectoryColumns, info: RolloutInfo) -> None:
        """Say once, when a step is over, that none of its samples reported the metric: some report it with the first
        error alone, most misses are misspelt."""
        self._reported |= set(group.metrics)
        if self._first_step is None:
            self._first_step = info.step
        metric = self.config.metric
        if self._said or info.step == self._first_step or metric in self._reported:
            return
        self._said = True
        near = difflib.get_close_matches(metric, sorted(self._reported), n=3, cutoff=0.4)
        others = ", ".join(near or sorted(self._reported))
        log.warning(
            "drop_errors: no sample has reported the metric %s (--rollout.drop_errors.metric), so no prompt is "
            "dropped until one does. %s",
            metric,
            f"{'Near to it' if near else 'Reported are'}: {others}"
            if others
            else "None is reported",
        )


COMPONENT = Component(
    name="drop_errors",
    factory=DropErrors,
    config=DropErrorsConfig,
    summary="drops prompts of which too many samples report an error",
)

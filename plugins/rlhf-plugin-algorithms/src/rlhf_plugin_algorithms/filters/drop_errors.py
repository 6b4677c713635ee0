"""Filter of prompts whose samples ran into errors: a crashed sandbox says nothing about the answer."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import RolloutInfo, TrajectoryColumns
from rlhf_core.lazy import np


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

    def keep(self, group: TrajectoryColumns, info: RolloutInfo) -> str | None:
        """Return None or ``errors``."""
        del info
        reported = group.metrics.get(self.config.metric)
        if reported is None:
            return None
        episode = group.episode
        # NaN stands where a sample did not report the metric, and is not above 0.
        failed = np.bincount(episode, weights=reported > 0) > 0  # (E,) for E episodes
        return "errors" if failed.mean() > self.config.max_share else None


COMPONENT = Component(
    name="drop_errors",
    factory=DropErrors,
    config=DropErrorsConfig,
    summary="drops prompts of which too many samples report an error",
)

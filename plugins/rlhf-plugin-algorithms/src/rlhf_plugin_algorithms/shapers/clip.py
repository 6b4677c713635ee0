"""Clipping of each sample's total reward to a range, before any baseline is subtracted."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field, model_validator

from rlhf_core import Component, Config
from rlhf_core.contracts import Metrics, RolloutInfo, TrajectoryColumns
from rlhf_core.lazy import np

from .episodes import over_samples
from .stateless import Stateless


class ClipConfig(Config):
    low: float = Field(-10.0, ge=-1e6, le=1e6, description="smallest reward")
    high: float = Field(10.0, ge=-1e6, le=1e6, description="largest reward")

    @model_validator(mode="after")
    def _not_empty(self) -> ClipConfig:
        if self.low >= self.high:
            raise ValueError(f"low is {self.low:g}, expected less than high = {self.high:g}")
        return self


class Clip(Stateless):
    """Reward shaper ``clip``: total reward ``min(max(r, low), high)``. The change is made to the episode's score.

    Clipping after the group's mean was subtracted, as OpenRLHF does, would depend on the other samples and shift the
    mean of the advantages away from 0.
    """

    def __init__(self, config: ClipConfig) -> None:
        self.config = config

    def shape(
        self, batch: TrajectoryColumns, info: RolloutInfo
    ) -> tuple[TrajectoryColumns, Metrics]:
        del info
        total = batch.total_reward.astype(np.float64)  # (B,)
        excess = total - np.clip(total, self.config.low, self.config.high)
        metrics = {
            "clip_reward/low": over_samples(excess < 0, batch.episode),
            "clip_reward/high": over_samples(excess > 0, batch.episode),
        }
        return replace(batch, reward=(batch.reward - excess).astype(np.float32)), metrics


COMPONENT = Component(
    name="clip",
    factory=Clip,
    config=ClipConfig,
    summary="cuts rewards to a range, before any baseline",
)

"""Normalization of rewards by the running mean and standard deviation of all rewards seen so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from rlhf_core import CheckpointError, Component, Config
from rlhf_core.contracts import Metric, Metrics, RolloutInfo, TrajectoryColumns
from rlhf_core.lazy import Float, Int, np


class NormalizeConfig(Config):
    of: Literal["total", "episode"] = Field(
        "total",
        description="total: normalize the episode's score and the rewards of its turns together; episode: the score "
        "alone",
    )
    eps: float = Field(
        1e-4,
        ge=1e-6,
        le=1.0,
        description="added to the standard deviation, in units of the reward",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Count, mean and sum of squared deviations of the numbers seen so far."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def std(self) -> float:
        """Population standard deviation; 0 before the first number."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    def updated(
        self, values: Float[np.ndarray, " n"], episode: Int[np.ndarray, " n"] | None = None
    ) -> Moments:
        """Return the moments with ``values`` added; an episode counts once.

        The result is that of adding the values one by one, in any order, up to float64 rounding. Equal values have
        squares of exactly 0. Each of the n rows of an episode weighs 1/n, in the mean and in the squares, so rows that
        cancel within their episode still have a deviation.

        Args:
            episode: dense index 0..E-1. None: each value is an episode.

        Source: Chan, Golub and LeVeque 1979, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances,
        which is Welford's update for many values at once.
        """
        if not len(values):
            return self
        if episode is None:
            episode = np.arange(len(values))
        rows = np.bincount(episode)  # (E,) for E episodes
        added, weights = len(rows), 1.0 / rows[episode]
        lowest = float(values.min())
        above = values.astype(np.float64) - lowest  # equal values: exactly 0
        mean = lowest + float((weights * above).sum()) / added
        squares = float((weights * np.square(values - mean)).sum())
        count, apart = self.count + added, mean - self.mean
        return Moments(
            count=count,
            mean=self.mean + apart * added / count,
            squares=self.squares + squares + apart * apart * self.count * added / count,
        )


class Normalize:
    """Reward shaper: ``(r - mean) / (std + eps)`` over all episodes so far, those of this batch included."""

    def __init__(self, config: NormalizeConfig) -> None:
        self.config = config
        self._seen = Moments()

    def shape(
        self, batch: TrajectoryColumns, info: RolloutInfo
    ) -> tuple[TrajectoryColumns, Metrics]:
        del info
        total = self.config.of == "total"
        rewards = (batch.total_reward if total else batch.reward).astype(np.float64)
        self._seen = seen = self._seen.updated(rewards, batch.episode)
        scale = seen.std + self.config.eps
        shaped = replace(
            batch,
            reward=((batch.reward - seen.mean) / scale).astype(np.float32),
            # The mean is subtracted where the score ends; its parts keep their places.
            step_rewards=(batch.step_rewards / scale).astype(np.float32),
        )
        if total:
            # Together with the score this makes the total (r - mean) / scale.
            shaped = replace(shaped, turn_rewards=(batch.turn_rewards / scale).astype(np.float32))
        metrics = {
            "normalize/mean": Metric(seen.mean, reduction="last"),
            "normalize/std": Metric(seen.std, reduction="last"),
        }
        return shaped, metrics

    def state_dict(self) -> dict[str, Any]:
        seen = self._seen
        return {"count": seen.count, "mean": seen.mean, "squares": seen.squares}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises:
        CheckpointError: the state is another shaper's.
        """
        if state.keys() != {"count", "mean", "squares"}:
            raise CheckpointError(
                f"the shaper normalize saves count, mean and squares; the checkpoint has {', '.join(state) or 'none'}. "
                "Resume with the reward.shapers of the run that was saved, in their order.",
                code="checkpoint/other-shaper",
            )
        self._seen = Moments(
            count=int(state["count"]), mean=float(state["mean"]), squares=float(state["squares"])
        )


COMPONENT = Component(
    name="normalize",
    factory=Normalize,
    config=NormalizeConfig,
    summary="rewards minus their running mean, divided by their running standard deviation",
)

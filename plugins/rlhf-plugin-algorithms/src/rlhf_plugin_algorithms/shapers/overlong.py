"""DAPO's soft penalty on long responses: it grows over the last tokens before the length limit."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field, model_validator

from rlhf_core import Component, Config, ConfigError
from rlhf_core.contracts import Metrics, RolloutInfo, TrajectoryColumns
from rlhf_core.lazy import Float, Int, np

from .episodes import episode_lengths, longest_turns, over_samples
from .stateless import Stateless


class OverlongConfig(Config):
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="largest number of action tokens of an episode; unset: each turn is measured against "
        "rollout.max_new_tokens",
    )
    buffer: int | None = Field(
        None,
        ge=1,
        description="number of tokens before the limit over which the penalty grows; unset: a fifth of the limit",
    )
    factor: float = Field(
        1.0, ge=0.0, le=1e6, description="penalty at the limit, in units of the reward"
    )

    @model_validator(mode="after")
    def _the_buffer_fits(self) -> OverlongConfig:
        if self.max_tokens is not None and (self.buffer or 0) > self.max_tokens:
            raise ValueError(
                f"buffer is {self.buffer}, expected at most max_tokens = {self.max_tokens}"
            )
        return self


def overlong_penalty(
    lengths: Int[np.ndarray, " b"], *, limit: int, buffer: int, factor: float
) -> Float[np.ndarray, " b"]:
    """Return ``factor * clip((length - (limit - buffer)) / buffer, 0, 1)``, in float64.

    The penalty is 0 up to ``limit - buffer`` tokens and ``factor`` from ``limit`` tokens on, with a straight line in
    between. The caller subtracts it from the reward.

    Args:
        lengths: number of action tokens of each row.
        limit: number of tokens from which on the whole penalty is due.
        buffer: number of tokens before the limit over which the penalty grows, from 1 to ``limit``.
        factor: the whole penalty, in units of the reward.

    Source: Yu et al. 2025 (DAPO), arXiv:2503.14476, equation 13, which has ``factor`` 1.
    """
    return factor * np.clip((lengths - (limit - buffer)) / buffer, 0.0, 1.0)


class Overlong(Stateless):
    """Reward shaper that subtracts the penalty from the score of each episode.

    Without ``max_tokens`` the longest turn of an episode counts, because ``rollout.max_new_tokens`` is a limit of a
    turn; with it, all turns together.
    """

    def __init__(self, config: OverlongConfig) -> None:
        self.config = config

    def shape(
        self, batch: TrajectoryColumns, info: RolloutInfo
    ) -> tuple[TrajectoryColumns, Metrics]:
        """Raises:
        ConfigError: the buffer is longer than ``rollout.max_new_tokens``, which is the limit when none is set.
        """
        config = self.config
        limit = config.max_tokens or info.max_new_tokens
        buffer = config.buffer or max(1, limit // 5)
        if buffer > limit:
            raise ConfigError(
                f"reward.overlong.buffer is {buffer}, expected at most rollout.max_new_tokens = {limit}; lower it, or "
                "set the limit of an episode with --reward.overlong.max_tokens",
                code="reward/overlong-buffer",
            )
        lengths = episode_lengths(batch) if config.max_tokens else longest_turns(batch)
        penalty = overlong_penalty(lengths, limit=limit, buffer=buffer, factor=config.factor)
        metrics = {
            "overlong/penalty": over_samples(penalty, batch.episode),
            "overlong/penalized": over_samples(penalty > 0, batch.episode),
        }
        return replace(batch, reward=(batch.reward - penalty).astype(np.float32)), metrics


COMPONENT = Component(
    name="overlong",
    factory=Overlong,
    config=OverlongConfig,
    summary="a penalty that grows over the last tokens before the length limit (DAPO)",
)

"""Options of ``gmpo``, ``luspo`` and ``vespo``. Where defaults come from is in docs/algorithms."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config


class GmpoConfig(Config):
    clip_low: float = Field(
        0.4,
        gt=0.0,
        le=20.0,
        description="a token's log-ratio counts down to -clip_low, in nats: 0.4 is a ratio of 0.67",
    )
    clip_high: float = Field(
        0.4,
        gt=0.0,
        le=20.0,
        description="a token's log-ratio counts up to clip_high, in nats: 0.4 is a ratio of 1.49",
    )


class LuspoConfig(Config):
    clip_low: float = Field(
        3e-4,
        gt=0.0,
        le=1.0,
        description="the sequence's ratio, a geometric mean, counts down to 1 - clip_low",
    )
    clip_high: float = Field(
        4e-4,
        gt=0.0,
        le=10.0,
        description="the sequence's ratio, a geometric mean, counts up to 1 + clip_high",
    )


class VespoConfig(Config):
    k_pos: float = Field(
        2.0, ge=0.0, le=100.0, description="A >= 0: power of the importance weight, rising part"
    )
    lambda_pos: float = Field(
        3.0, gt=0.0, le=100.0, description="A >= 0: exponential decay in the importance weight"
    )
    k_neg: float = Field(
        3.0, ge=0.0, le=100.0, description="A < 0: power of the importance weight, rising part"
    )
    lambda_neg: float = Field(
        2.0, gt=0.0, le=100.0, description="A < 0: exponential decay in the importance weight"
    )
    behavior: Literal["old", "rollout"] = Field(
        "old",
        description="the importance weight divides by old: the policy before the batch's updates; rollout: the "
        "sampler's log-probs, which covers its mismatch and staleness too",
    )

    def needed_by_options(self) -> frozenset[str]:
        return frozenset({"rollout_logprobs"} if self.behavior == "rollout" else ())

    def excluded_by_options(self) -> frozenset[str]:
        # Against the sampler's own policy the weight is what a correction would put on a second time.
        return frozenset(
            {"is_correction", "renormalized_sampling"} if self.behavior == "rollout" else ()
        )

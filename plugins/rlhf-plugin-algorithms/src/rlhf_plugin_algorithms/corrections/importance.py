"""The general importance-sampling correction: weights or masks, by ratio or divergence, at any level.

The other corrections (``tis``, ``icepop``, ``seq_mask_tis``, ``mis``, ``flash_mask``) equal settings of this one. With
``g = log trainer - log sampler`` of a token, a token or a sequence is judged by ``exp(g)``, by the product or the
geometric mean of a sequence's ratios, or by a divergence, and is weighted with a bounded ratio or dropped. The formula
is ``rlhf_core.math.importance_weights``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlhf_core import Component, Config
from rlhf_core.contracts import Correction
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import importance_metrics, importance_weights

from .weighting import CONFLICTS, NEEDS

Level = Literal["token", "sequence", "geometric"]
Mode = Literal["truncate", "clip", "mask"]
Gate = Literal["ratio", "binary_kl", "tv", "k2", "k3"]
Weight = Literal["token", "sequence", "geometric", "off"]


class ImportanceConfig(Config):
    level: Level = Field(
        "token",
        description="what is judged: each token; each sequence by the product of its ratios or the sum of its "
        "divergences; geometric: each sequence by its geometric mean ratio or its mean divergence",
    )
    mode: Mode = Field(
        "truncate",
        description="truncate: weights are at most high; clip: weights are between low and high; mask: what is "
        "outside is dropped",
    )
    gate: Gate = Field(
        "ratio",
        description="what low and high bound: the ratio trainer / sampler, or a divergence of the sampled token",
    )
    low: float | None = Field(
        None, ge=1e-6, le=1.0, description="lower bound of the ratio; none: no lower bound"
    )
    high: float = Field(2.0, gt=0.0, le=1e6, description="upper bound of the ratio or divergence")
    weight: Weight | None = Field(
        None,
        description="mode mask: the level of the ratio that kept tokens are weighted with, or off; none: token",
    )
    max_weight: float | None = Field(
        None,
        ge=1.0,
        le=1e6,
        description="mode mask: upper bound of the weight that a kept token carries; none: no bound",
    )

    @model_validator(mode="after")
    def _refuse_what_means_nothing(self) -> ImportanceConfig:
        problem = (
            self._problem_of_the_mode() if self.mode != "mask" else self._problem_of_the_weight()
        ) or self._problem_of_the_bounds()
        if problem:
            raise ValueError(problem)
        return self

    def _problem_of_the_mode(self) -> str | None:
        if self.gate != "ratio":
            return (
                f"mode {self.mode} bounds a weight, but gate {self.gate} is a divergence, not a weight. "
                "Set mode mask, or gate ratio."
            )
        if self.weight is not None or self.max_weight is not None:
            return (
                f"weight and max_weight are for mode mask; in mode {self.mode} the weight is the ratio of level "
                f"{self.level}, at most high. Leave them out."
            )
        if self.mode == "clip" and self.low is None:
            return "mode clip needs low. Set it, or mode truncate for an upper bound alone."
        if self.mode == "truncate" and self.low is not None:
            return (
                "mode truncate has no lower bound, but low is set. Leave it out, or set mode clip."
            )
        return None

    def _problem_of_the_weight(self) -> str | None:
        if self.weight == "off" and self.max_weight is not None:
            return "max_weight bounds a weight, but weight is off. Leave one of the two out."
        return None

    def _problem_of_the_bounds(self) -> str | None:
        if self.gate == "ratio":
            if self.high < 1.0:
                return (
                    f"high is {self.high:g}: equal log-probs have ratio 1, which must be inside the bounds. "
                    "Set high to at least 1."
                )
            return None
        if self.low is not None:
            return f"gate {self.gate} is 0 for equal log-probs, so it has no lower bound. Leave low out."
        if "high" not in self.model_fields_set:
            return f"gate {self.gate} needs high: its default 2 is for ratios. FlashREINFORCE sets 0.005."
        if self.gate == "tv" and self.level != "sequence" and self.high >= 1.0:
            return f"high is {self.high:g}, but a total variation is below 1: nothing would be dropped."
        return None


class Importance:
    """IS correction ``importance``, with every level, mode and gate."""

    def __init__(self, config: ImportanceConfig) -> None:
        self.config = config

    def __call__(
        self,
        old_logprobs: Float[torch.Tensor, "b a"],
        rollout_logprobs: Float[torch.Tensor, "b a"],
        action_mask: Bool[torch.Tensor, "b a"],
    ) -> Correction:
        config = self.config
        result = importance_weights(
            old_logprobs,
            rollout_logprobs,
            action_mask,
            level=config.level,
            mode=config.mode,
            gate=config.gate,
            low=config.low,
            high=config.high,
            weight=config.weight or "token",
            max_weight=config.max_weight,
        )
        return Correction(
            weights=result.weights,
            keep=result.keep,
            metrics=importance_metrics(result, action_mask),
        )


COMPONENT = Component(
    name="importance",
    factory=Importance,
    config=ImportanceConfig,
    summary="weights or masks by ratio or divergence, at any level",
    needs=NEEDS,
    conflicts=CONFLICTS,
)

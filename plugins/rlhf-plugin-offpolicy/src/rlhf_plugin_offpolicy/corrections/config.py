"""Options of the corrections. Where defaults come from is in docs/algorithms.

``importance`` has every option; each preset is a few of them and says, in ``rule``, what it is in those terms.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

from pydantic import Field, model_validator

from rlhf_core import Config

Level = Literal["token", "sequence", "geometric"]
Mode = Literal["truncate", "clip", "mask"]
Gate = Literal["ratio", "binary_kl", "tv", "k2", "k3"]
Weight = Literal["token", "sequence", "geometric", "off"]

_MAX_WEIGHT = "upper bound of the weight that a kept token carries; none: no bound"


class CorrectionConfig(Config):
    """What the options of every correction can say."""

    @abstractmethod
    def rule(self) -> ImportanceConfig:
        """Return the options of ``importance`` that do the same."""


class ImportanceConfig(CorrectionConfig):
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
    max_weight: float | None = Field(None, ge=1.0, le=1e6, description=f"mode mask: {_MAX_WEIGHT}")

    def rule(self) -> ImportanceConfig:
        return self

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
                f"mode {self.mode} bounds a weight, and gate {self.gate} is a divergence, which is none. "
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
            return "max_weight bounds a weight, but weight is off. Leave one out."
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
            return f"gate {self.gate} needs high: its default is one for ratios. FlashREINFORCE has 0.005."
        if self.gate == "tv" and self.level != "sequence" and self.high >= 1.0:
            return f"high is {self.high:g}, but a total variation is below 1: nothing would be dropped."
        return None


class TisConfig(CorrectionConfig):
    high: float = Field(2.0, ge=1.0, le=1e6, description="largest weight of a token")
    low: float | None = Field(
        None, ge=1e-6, le=1.0, description="smallest weight of a token; none: no lower bound"
    )

    def rule(self) -> ImportanceConfig:
        mode: Mode = "truncate" if self.low is None else "clip"
        return ImportanceConfig(level="token", mode=mode, low=self.low, high=self.high)


class IcepopConfig(CorrectionConfig):
    low: float = Field(0.5, ge=1e-6, le=1.0, description="tokens with a smaller ratio are dropped")
    high: float = Field(5.0, ge=1.0, le=1e6, description="tokens with a larger ratio are dropped")

    def rule(self) -> ImportanceConfig:
        return ImportanceConfig(level="token", mode="mask", low=self.low, high=self.high)


class SeqMaskTisConfig(CorrectionConfig):
    low: float = Field(
        0.999,
        ge=1e-6,
        le=1.0,
        description="sequences with a smaller geometric mean ratio are dropped",
    )
    high: float = Field(
        1.002,
        ge=1.0,
        le=1e6,
        description="sequences with a larger geometric mean ratio are dropped",
    )
    max_weight: float | None = Field(None, ge=1.0, le=1e6, description=_MAX_WEIGHT)

    def rule(self) -> ImportanceConfig:
        return ImportanceConfig(
            level="geometric",
            mode="mask",
            low=self.low,
            high=self.high,
            max_weight=self.max_weight,
        )


class MisConfig(CorrectionConfig):
    high: float = Field(
        2.0, ge=1.0, le=1e6, description="sequences with a larger ratio are dropped"
    )
    low: float | None = Field(
        None,
        ge=1e-6,
        le=1.0,
        description="sequences with a smaller ratio are dropped; none: no lower bound",
    )

    def rule(self) -> ImportanceConfig:
        return ImportanceConfig(
            level="sequence", mode="mask", low=self.low, high=self.high, weight="sequence"
        )


class FlashMaskConfig(CorrectionConfig):
    high: float = Field(
        0.005,
        gt=0.0,
        le=100.0,
        description="sequences with a larger mean binary KL, in nats per token, are dropped",
    )
    max_weight: float | None = Field(None, ge=1.0, le=1e6, description=_MAX_WEIGHT)

    def rule(self) -> ImportanceConfig:
        return ImportanceConfig(
            level="geometric",
            mode="mask",
            gate="binary_kl",
            high=self.high,
            max_weight=self.max_weight,
        )

"""Options of the group-relative estimators. Where defaults come from is in docs/algorithms."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config

_EPS = "added to the standard deviation, in units of the reward"


class GroupNormConfig(Config):
    eps: float = Field(1e-4, ge=1e-6, le=1.0, description=_EPS)
    std: Literal["sample", "population"] = Field(
        "sample", description="divide the squared deviations of n samples by n - 1, or by n"
    )


class DrGrpoConfig(Config):
    """Dr. GRPO has no options; its other half is --algo.loss.aggregation seq-mean-token-sum-norm."""


class GrpoPasskConfig(Config):
    advantage: Literal["margin", "analytic"] = Field(
        "margin",
        description="margin: the best sample gets its lead over the second; analytic: the mean over all sets of k",
    )
    std: Literal["sample", "none"] = Field(
        "sample", description="margin: divide by the group's standard deviation (n - 1), or not"
    )
    eps: float = Field(1e-4, ge=1e-6, le=1.0, description=f"margin: {_EPS}")
    k: int = Field(4, ge=1, le=1024, description="analytic: samples in a set")
    correct_above: float = Field(
        0.0,
        ge=-1e6,
        le=1e6,
        description="analytic: samples that earned more than this are correct",
    )

    def needed_by_options(self) -> frozenset[str]:
        """A set of k needs a group of at least k."""
        return (
            frozenset({f"group>={self.k}"})
            if self.advantage == "analytic" and self.k > 2
            else frozenset()
        )


class MaxRlConfig(Config):
    """MaxRL has no options."""


class GdpoConfig(Config):
    eps: float = Field(1e-4, ge=1e-6, le=1.0, description=_EPS)
    whiten: Literal["full", "mean", "none"] = Field(
        "full",
        description="the sum, over all action tokens of the batch: full: zero mean, unit variance; mean: zero mean",
    )


class GigpoConfig(Config):
    step_weight: float = Field(
        1.0, ge=0.0, le=100.0, description="weight of the comparison of turns; 0: episodes alone"
    )
    gamma: float = Field(
        0.95, ge=0.0, le=1.0, description="discount per turn, in the comparison of turns"
    )
    norm: Literal["std", "none"] = Field(
        "std", description="divide both comparisons by their standard deviations (n - 1), or not"
    )
    eps: float = Field(1e-4, ge=1e-6, le=1.0, description=_EPS)


class HierarchicalGrpoConfig(Config):
    """Hierarchical GRPO has no options."""

"""Options of the REINFORCE estimators. Where defaults come from is in docs/algorithms."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config

Whitening = Literal["full", "mean", "none"]
_WHITEN = (
    "over all action tokens of the batch: full: zero mean, unit variance; mean: zero mean only"
)


class ReinforceConfig(Config):
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount per action token")
    whiten: Whitening = Field("full", description=_WHITEN)


class ReinforceBaselineConfig(Config):
    whiten: Whitening = Field("full", description=_WHITEN)


class RlooConfig(Config):
    """RLOO has no options."""


class FlashReinforceConfig(Config):
    """FlashREINFORCE has no options; its other half is --algo.correction.kind flash_mask."""


class RemaxConfig(Config):
    """ReMax has no options."""


class OpoConfig(Config):
    """OPO has no options."""


class OptimalTokenBaselineConfig(Config):
    tail: Literal["carry", "zero"] = Field(
        "carry",
        description="baseline where one sample of a group is left: carry: the last one of two; zero: none, as in verl",
    )


class RaftConfig(Config):
    keep: Literal["rewarded", "best"] = Field(
        "rewarded",
        description="rewarded: every sample above the threshold; best: the best samples of each prompt",
    )
    threshold: float = Field(
        0.0, ge=-1e6, le=1e6, description="rewarded: keep samples that earned more than this"
    )

    def needed_by_options(self) -> frozenset[str]:
        return frozenset({"group>=2"}) if self.keep == "best" else frozenset()

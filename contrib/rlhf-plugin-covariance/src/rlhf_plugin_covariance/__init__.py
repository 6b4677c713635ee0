"""Policy losses that keep entropy by treating high-covariance tokens apart: Clip-Cov and KL-Cov."""

from typing import Any

from rlhf_core import Component, hookimpl

from . import covariance


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    return [covariance.CLIP_COV, covariance.KL_COV]

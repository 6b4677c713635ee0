"""Policy losses that keep entropy by treating high-covariance tokens apart: Clip-Cov and KL-Cov."""

from typing import Any

from rlhf_core import Component, hookimpl

from .config import ClipCovConfig, KlCovConfig


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    return [
        Component(
            name="clip_cov",
            factory="rlhf_plugin_covariance.components:ClipCovLoss",
            config=ClipCovConfig,
            summary="clipped ratio that lets a few tokens of high covariance go, to keep entropy (Clip-Cov)",
            needs=frozenset({"old_logprobs"}),
            provides=frozenset({"prepares_step", "aggregation:token-mean", "off_policy"}),
        ),
        Component(
            name="kl_cov",
            factory="rlhf_plugin_covariance.components:KlCovLoss",
            config=KlCovConfig,
            summary="ratio with a KL penalty at the tokens of the highest covariance, to keep entropy (KL-Cov)",
            needs=frozenset({"old_logprobs"}),
            provides=frozenset({"prepares_step", "aggregation:token-mean", "off_policy"}),
        ),
    ]

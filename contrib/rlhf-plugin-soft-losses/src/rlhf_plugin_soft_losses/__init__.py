"""Policy losses without hard clipping: SAPO and GPG."""

from typing import Any

from rlhf_core import Component, hookimpl

from .config import GpgConfig, SapoConfig


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    return [
        Component(
            name="sapo",
            factory="rlhf_plugin_soft_losses.components:SapoLoss",
            config=SapoConfig,
            summary="the ratio through a sigmoid, steeper for bad tokens, in place of clipping (SAPO)",
            provides=frozenset({"aggregation:seq-mean-token-mean", "off_policy"}),
        ),
        Component(
            name="gpg",
            factory="rlhf_plugin_soft_losses.components:GpgLoss",
            config=GpgConfig,
            summary="minus log-prob times advantage, without a ratio (GPG, plain policy gradient)",
            provides=frozenset({"aggregation:token-mean"}),
        ),
    ]

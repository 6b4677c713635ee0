"""Policy losses over whole sequences: GMPO, LUSPO and VESPO."""

from typing import Any

from rlhf_core import Component, hookimpl

from .config import GmpoConfig, LuspoConfig, VespoConfig


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    return [
        Component(
            name="gmpo",
            factory="rlhf_plugin_sequence_losses.components:GmpoLoss",
            config=GmpoConfig,
            summary="geometric mean of the sequence's ratios, each clipped by itself (GMPO)",
            provides=frozenset({"aggregation:seq-mean-token-mean", "off_policy"}),
        ),
        Component(
            name="luspo",
            factory="rlhf_plugin_sequence_losses.components:LuspoLoss",
            config=LuspoConfig,
            summary="clipped sequence ratio, every token of the same weight whatever the length (LUSPO)",
            provides=frozenset({"aggregation:seq-mean-token-sum-norm", "off_policy"}),
        ),
        Component(
            name="vespo",
            factory="rlhf_plugin_sequence_losses.components:VespoLoss",
            config=VespoConfig,
            summary="soft kernel on the whole sequence's importance weight, for stale data (VESPO)",
            provides=frozenset({"aggregation:token-mean", "off_policy"}),
        ),
    ]

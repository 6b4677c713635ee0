"""REINFORCE and its relatives: what they differ in is the baseline."""

from typing import Any

from rlhf_core import Component, hookimpl

from .config import (
    FlashReinforceConfig,
    OpoConfig,
    OptimalTokenBaselineConfig,
    RaftConfig,
    ReinforceBaselineConfig,
    ReinforceConfig,
    RemaxConfig,
    RlooConfig,
)

_COMPARES_A_GROUP = frozenset({"group>=2"})


@hookimpl
def rlhf_advantage_estimators() -> list[Component[Any]]:
    return [
        Component(
            name="reinforce",
            factory="rlhf_plugin_reinforce.components:Reinforce",
            config=ReinforceConfig,
            summary="discounted return, whitened over the batch (REINFORCE++)",
        ),
        Component(
            name="reinforce_baseline",
            factory="rlhf_plugin_reinforce.components:ReinforceBaseline",
            config=ReinforceBaselineConfig,
            summary="reward minus its group's mean, whitened over the batch (REINFORCE++-baseline)",
            needs=_COMPARES_A_GROUP,
        ),
        Component(
            name="rloo",
            factory="rlhf_plugin_reinforce.components:Rloo",
            config=RlooConfig,
            summary="reward minus the mean of the group's other samples (RLOO)",
            needs=_COMPARES_A_GROUP,
        ),
        Component(
            name="flash_reinforce",
            factory="rlhf_plugin_reinforce.components:FlashReinforce",
            config=FlashReinforceConfig,
            summary="reward minus the mean of the whole batch, no division (FlashREINFORCE)",
        ),
        Component(
            name="remax",
            factory="rlhf_plugin_reinforce.components:Remax",
            config=RemaxConfig,
            summary="reward minus that of the prompt's greedy response (ReMax)",
            needs=frozenset({"greedy_rewards"}),
            # The greedy episode is in no rollout batch, so no shaper sees it: its reward would be on another scale.
            conflicts=frozenset({"reward_shaper"}),
        ),
        Component(
            name="opo",
            factory="rlhf_plugin_reinforce.components:Opo",
            config=OpoConfig,
            summary="reward minus its group's mean, weighted by length (OPO)",
            needs=_COMPARES_A_GROUP,
        ),
        Component(
            name="optimal_token_baseline",
            factory="rlhf_plugin_reinforce.components:OptimalTokenBaseline",
            config=OptimalTokenBaselineConfig,
            summary="reward minus a baseline for each position, weighted by gradient norms (OTB)",
            needs=_COMPARES_A_GROUP | {"old_logprobs", "sum_pi_squared"},
        ),
        Component(
            name="raft",
            factory="rlhf_plugin_reinforce.components:Raft",
            config=RaftConfig,
            summary="1 for rewarded or best samples, 0 for the others (RAFT, RAFT++)",
        ),
    ]

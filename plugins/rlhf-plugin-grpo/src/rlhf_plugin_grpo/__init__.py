"""GRPO and its relatives: advantages from comparing the samples of a prompt, and GSPO. One file an algorithm."""

from typing import Any

from rlhf_core import Component, hookimpl

from . import dr_grpo, gdpo, gigpo, group_norm, grpo_passk, gspo, hierarchical_grpo, maxrl


@hookimpl
def rlhf_advantage_estimators() -> list[Component[Any]]:
    return [
        group_norm.COMPONENT,
        dr_grpo.COMPONENT,
        grpo_passk.COMPONENT,
        maxrl.COMPONENT,
        gdpo.COMPONENT,
        gigpo.COMPONENT,
        hierarchical_grpo.COMPONENT,
    ]


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    return [gspo.COMPONENT, gspo.TOKEN_COMPONENT]

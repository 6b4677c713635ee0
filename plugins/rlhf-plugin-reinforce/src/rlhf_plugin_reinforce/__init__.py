"""REINFORCE and its relatives, which differ in the baseline. One file an algorithm."""

from typing import Any

from rlhf_core import Component, hookimpl

from . import (
    flash_reinforce,
    opo,
    optimal_token_baseline,
    raft,
    reinforce,
    reinforce_baseline,
    remax,
    rloo,
)


@hookimpl
def rlhf_advantage_estimators() -> list[Component[Any]]:
    return [
        reinforce.COMPONENT,
        reinforce_baseline.COMPONENT,
        rloo.COMPONENT,
        flash_reinforce.COMPONENT,
        remax.COMPONENT,
        opo.COMPONENT,
        optimal_token_baseline.COMPONENT,
        raft.COMPONENT,
    ]

"""Importance-sampling corrections, and policy losses for data of an older or another policy. One file each."""

from typing import Any

from rlhf_core import Component, hookimpl

from . import (
    cispo,
    decoupled_ppo,
    dppo,
    flash_mask,
    icepop,
    importance,
    mis,
    seq_mask_tis,
    tis,
    topr,
)


@hookimpl
def rlhf_is_corrections() -> list[Component[Any]]:
    return [
        importance.COMPONENT,
        tis.COMPONENT,
        icepop.COMPONENT,
        seq_mask_tis.COMPONENT,
        mis.COMPONENT,
        flash_mask.COMPONENT,
    ]


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    return [cispo.COMPONENT, dppo.COMPONENT, topr.COMPONENT, decoupled_ppo.COMPONENT]

"""Importance-sampling corrections, and policy losses for data of an older or another policy. One file each."""

from pathlib import Path
from typing import Any

from rlhf_core import Component, hookimpl
from rlhf_core.contracts import Preset, preset_component

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

_PRESETS = Path(__file__).with_name("presets")


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


@hookimpl
def rlhf_presets() -> list[Component[Preset]]:
    return [
        preset_component(_PRESETS / "cispo.toml", "CISPO (MiniMax 2025)"),
    ]

"""REINFORCE and its relatives, which differ in the baseline. One file an algorithm."""

from pathlib import Path
from typing import Any

from rlhf_core import Component, hookimpl
from rlhf_core.contracts import Preset, preset_component

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

_PRESETS = Path(__file__).with_name("presets")


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


@hookimpl
def rlhf_presets() -> list[Component[Preset]]:
    return [
        preset_component(_PRESETS / "reinforce_pp.toml", "REINFORCE++ (Hu et al. 2025)"),
        preset_component(
            _PRESETS / "reinforce_baseline.toml", "REINFORCE++-baseline (Hu et al. 2025)"
        ),
        preset_component(_PRESETS / "rloo.toml", "RLOO (Ahmadian et al. 2024)"),
    ]

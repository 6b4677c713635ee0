"""GRPO and its relatives: advantages from comparing the samples of a prompt, and GSPO. One file an algorithm."""

from pathlib import Path
from typing import Any

from rlhf_core import Component, hookimpl
from rlhf_core.contracts import Preset, preset_component

from . import dr_grpo, gdpo, gigpo, group_norm, grpo_passk, gspo, hierarchical_grpo, maxrl

_PRESETS = Path(__file__).with_name("presets")


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


@hookimpl
def rlhf_presets() -> list[Component[Preset]]:
    return [
        preset_component(_PRESETS / "grpo.toml", "GRPO (Shao et al. 2024)"),
        preset_component(_PRESETS / "dr_grpo.toml", "Dr. GRPO (Liu et al. 2025)"),
        preset_component(_PRESETS / "dapo.toml", "DAPO (Yu et al. 2025)"),
        preset_component(_PRESETS / "gspo.toml", "GSPO (Zheng et al. 2025)"),
    ]

"""PPO: generalized advantage estimation and the clipped policy loss. One file an algorithm."""

from pathlib import Path
from typing import Any

from rlhf_core import Component, hookimpl
from rlhf_core.contracts import Preset, preset_component

from . import gae, ppo

_PRESETS = Path(__file__).with_name("presets")


@hookimpl
def rlhf_advantage_estimators() -> list[Component[Any]]:
    return [gae.COMPONENT]


@hookimpl
def rlhf_policy_losses() -> list[Component[Any]]:
    return [ppo.COMPONENT]


@hookimpl
def rlhf_presets() -> list[Component[Preset]]:
    return [
        preset_component(
            _PRESETS / "ppo.toml", "PPO with a critic, as in RLHF (Ouyang et al. 2022)"
        ),
    ]

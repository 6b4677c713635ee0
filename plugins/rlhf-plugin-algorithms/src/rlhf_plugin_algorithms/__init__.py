"""Every algorithm of this repository, one file each: options, formula, class, registration, as its paper has it."""

from pathlib import Path
from typing import Any

from rlhf_core import Component, hookimpl
from rlhf_core.contracts import Preset, preset_component

from .advantages import (
    dr_grpo,
    flash_reinforce,
    gae,
    gdpo,
    gigpo,
    group_norm,
    grpo_passk,
    hierarchical_grpo,
    maxrl,
    opo,
    optimal_token_baseline,
    raft,
    reinforce,
    reinforce_baseline,
    remax,
    rloo,
)
from .corrections import flash_mask, icepop, importance, mis, seq_mask_tis, tis
from .filters import drop_errors, drop_stale, dynamic_sampling, zero_variance
from .kl import k1, k2, k3
from .losses import cispo, decoupled_ppo, dppo, gspo, ppo, topr
from .optimizers import adam, adam8bit, muon, sgd
from .preference import (
    aot,
    aot_unpaired,
    apo_down,
    apo_zero,
    bco,
    cdpo,
    dpo,
    hinge,
    ipo,
    kto,
    orpo,
    robust,
    simpo,
)
from .samplers import by_column, curriculum
from .schedules import constant, cosine, inverse_sqrt, linear, wsd
from .shapers import clip, length_bonus, normalize, overlong, stop_properly

_PRESETS = Path(__file__).with_name("presets")
_METHODS = {
    "grpo": "GRPO (Shao et al. 2024)",
    "dr_grpo": "Dr. GRPO (Liu et al. 2025)",
    "dapo": "DAPO (Yu et al. 2025)",
    "gspo": "GSPO (Zheng et al. 2025)",
    "cispo": "CISPO (MiniMax 2025)",
    "ppo": "PPO with a critic, as in RLHF (Ouyang et al. 2022)",
    "reinforce_pp": "REINFORCE++ (Hu et al. 2025)",
    "reinforce_baseline": "REINFORCE++-baseline (Hu et al. 2025)",
    "rloo": "RLOO (Ahmadian et al. 2024)",
}
"""Preset -> the method and its paper."""


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
        gae.COMPONENT,
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
def rlhf_policy_losses() -> list[Component[Any]]:
    return [
        ppo.COMPONENT,
        gspo.COMPONENT,
        gspo.TOKEN_COMPONENT,
        cispo.COMPONENT,
        dppo.COMPONENT,
        topr.COMPONENT,
        decoupled_ppo.COMPONENT,
    ]


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
def rlhf_kl_estimators() -> list[Component[Any]]:
    return [k1.COMPONENT, k2.COMPONENT, k3.COMPONENT]


@hookimpl
def rlhf_reward_shapers() -> list[Component[Any]]:
    return [
        overlong.COMPONENT,
        stop_properly.COMPONENT,
        clip.COMPONENT,
        normalize.COMPONENT,
        length_bonus.COMPONENT,
    ]


@hookimpl
def rlhf_sample_filters() -> list[Component[Any]]:
    return [
        dynamic_sampling.COMPONENT,
        zero_variance.COMPONENT,
        drop_stale.COMPONENT,
        drop_errors.COMPONENT,
    ]


@hookimpl
def rlhf_prompt_samplers() -> list[Component[Any]]:
    return [curriculum.COMPONENT, by_column.COMPONENT]


@hookimpl
def rlhf_lr_schedules() -> list[Component[Any]]:
    return [
        constant.COMPONENT,
        linear.COMPONENT,
        cosine.COMPONENT,
        wsd.COMPONENT,
        inverse_sqrt.COMPONENT,
    ]


@hookimpl
def rlhf_optimizers() -> list[Component[Any]]:
    return [adam.COMPONENT, adam8bit.COMPONENT, muon.COMPONENT, sgd.COMPONENT]


@hookimpl
def rlhf_preference_losses() -> list[Component[Any]]:
    return [
        dpo.COMPONENT,
        cdpo.COMPONENT,
        robust.COMPONENT,
        ipo.COMPONENT,
        hinge.COMPONENT,
        apo_zero.COMPONENT,
        apo_down.COMPONENT,
        bco.COMPONENT,
        aot.COMPONENT,
        aot_unpaired.COMPONENT,
        kto.COMPONENT,
        orpo.COMPONENT,
        simpo.COMPONENT,
    ]


@hookimpl
def rlhf_presets() -> list[Component[Preset]]:
    return [preset_component(_PRESETS / f"{name}.toml", of) for name, of in _METHODS.items()]

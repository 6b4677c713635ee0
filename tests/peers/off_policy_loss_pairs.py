"""Policy losses for stale data: CISPO, DPPO, GSPO, and PPO with a behavior policy of its own."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rlhf_plugin_algorithms.losses.cispo import cispo_loss
from rlhf_plugin_algorithms.losses.decoupled_ppo import decoupled_ppo_loss
from rlhf_plugin_algorithms.losses.dppo import dppo_loss
from rlhf_plugin_algorithms.losses.gspo import gspo_loss, gspo_token_loss

from .batches import Batch
from .core_pairs import step_mean
from .pairs import Both, pair
from .policy_loss_pairs import (
    CORE_ALGOS,
    OPENRLHF_LOSS,
    TO_POLICY,
    TRL_LOSS,
    openrlhf_loss,
    our_inputs,
    verl_loss,
)
from .released import load
from .stand_ins import trl_loss, verl_actor


def _our_gspo(batch: Batch, function: Any, *, by_row: bool) -> Tensor:
    loss = function(*our_inputs(batch, by_row=by_row), clip_low=0.1, clip_high=0.12).loss
    return step_mean(batch, loss, "seq-mean-token-mean")


@pair("openrlhf", OPENRLHF_LOSS, "losses.gspo.gspo_loss", case="gspo", gradient=TO_POLICY)
def openrlhf_gspo(batch: Batch) -> Both:
    """Also with an advantage per token."""
    theirs = openrlhf_loss(batch, policy_loss_type="gspo", clip_eps_low=0.1, clip_eps_high=0.12)
    return Both(ours=_our_gspo(batch, gspo_loss, by_row=False), theirs=theirs)


@pair("trl", TRL_LOSS, "losses.gspo.gspo_loss", case="grpo, sequence level", gradient=TO_POLICY)
def trl_gspo(batch: Batch) -> Both:
    theirs = trl_loss(batch, "grpo", level="sequence", epsilon_low=0.1, epsilon_high=0.12)
    return Both(ours=_our_gspo(batch, gspo_loss, by_row=True), theirs=theirs)


@pair(
    "verl",
    f"{CORE_ALGOS}.compute_policy_loss_gspo",
    "losses.gspo.gspo_token_loss",
    gradient=TO_POLICY,
)
def verl_gspo(batch: Batch) -> Both:
    """Theirs is the variant per token, with an advantage per token."""
    theirs = verl_loss(
        batch,
        "compute_policy_loss_gspo",
        "seq-mean-token-mean",
        clip_ratio_low=0.1,
        clip_ratio_high=0.12,
    )
    return Both(ours=_our_gspo(batch, gspo_token_loss, by_row=False), theirs=theirs)


@pair(
    "verl",
    f"{CORE_ALGOS}.compute_policy_loss_cispo",
    "losses.cispo.cispo_loss",
    gradient=TO_POLICY,
)
def verl_cispo(batch: Batch) -> Both:
    theirs = verl_loss(batch, "compute_policy_loss_cispo", clip_ratio_high=0.28)
    ours = cispo_loss(*our_inputs(batch), clip_low=0.2, clip_high=0.28).loss
    return Both(ours=step_mean(batch, ours), theirs=theirs)


@pair("trl", TRL_LOSS, "losses.cispo.cispo_loss", case="cispo", gradient=TO_POLICY)
def trl_cispo(batch: Batch) -> Both:
    """Its epsilon_high is the bound itself, and there is no lower one."""
    theirs = trl_loss(batch, "cispo", epsilon_high=1.3)
    ours = cispo_loss(*our_inputs(batch, by_row=True), clip_low=1.0, clip_high=0.3).loss
    return Both(ours=step_mean(batch, ours), theirs=theirs)


def _verl_dppo(divergence: str) -> None:
    @pair(
        "verl",
        f"{CORE_ALGOS}.compute_policy_loss_dppo_{divergence}",
        "losses.dppo.dppo_loss",
        gradient=TO_POLICY,
    )
    def compare(batch: Batch) -> Both:
        theirs = verl_loss(
            batch,
            f"compute_policy_loss_dppo_{divergence}",
            clip_ratio_low=0.05,
            clip_ratio_high=0.05,
            clip_ratio_c=1.5,
        )
        ours = dppo_loss(
            *our_inputs(batch), divergence=divergence, threshold=0.05, max_ratio=1.5
        ).loss
        return Both(ours=step_mean(batch, ours), theirs=theirs)


for _divergence in ("tv", "kl"):
    _verl_dppo(_divergence)


def _our_decoupled(batch: Batch, *, drop: bool) -> Tensor:
    loss = decoupled_ppo_loss(
        batch.policy_logprobs,
        batch.old_logprobs,
        batch.rollout_logprobs,
        batch.advantages,
        batch.mask,
        clip_low=0.2,
        clip_high=0.2,
        max_weight=1.2,
        drop_beyond=drop,
    ).loss
    return step_mean(batch, loss)


@pair(
    "verl",
    f"{CORE_ALGOS}.compute_policy_loss_vanilla",
    "losses.decoupled_ppo.decoupled_ppo_loss",
    case="rollout_is_weights, token, 1.2",
    gradient=TO_POLICY,
)
def verl_decoupled(batch: Batch) -> Both:
    """Its dual clip so far away that it never acts."""
    weights, _ = load("verl.trainer.ppo.rollout_corr_helper").compute_rollout_correction_weights(
        batch.old_logprobs - batch.rollout_logprobs, batch.float_mask, "token", 1.2
    )
    theirs, _ = load("verl.trainer.ppo.core_algos").compute_policy_loss_vanilla(
        batch.old_logprobs,
        batch.policy_logprobs,
        batch.advantages,
        batch.float_mask,
        config=verl_actor(clip_ratio_c=1e6),
        rollout_is_weights=weights,
    )
    return Both(ours=_our_decoupled(batch, drop=False), theirs=theirs)


@pair(
    "openrlhf",
    OPENRLHF_LOSS,
    "losses.decoupled_ppo.decoupled_ppo_loss",
    case="ppo, token, mask, [0, 1.2]",
    gradient=TO_POLICY,
)
def openrlhf_decoupled(batch: Batch) -> Both:
    theirs = openrlhf_loss(batch, is_correction_level="token", is_correction_threshold=[0.0, 1.2])
    return Both(ours=_our_decoupled(batch, drop=True), theirs=theirs)

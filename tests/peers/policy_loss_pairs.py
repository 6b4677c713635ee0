"""Policy losses, aggregated as the peer aggregates them; the gradient is that of the whole step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlhf_core.math import highest_entropy, kl_estimate, off_policy_mask
from rlhf_plugin_algorithms.kl.k3 import k3
from rlhf_plugin_algorithms.losses.ppo import clipped_policy_loss
from rlhf_plugin_covariance.covariance import (
    clip_cov_loss,
    drawn_within,
    kl_cov_loss,
    largest_positive,
    num_selected,
    token_covariances,
)
from rlhf_plugin_sequence_losses.gmpo import gmpo_loss
from rlhf_plugin_sequence_losses.luspo import luspo_loss
from rlhf_plugin_sequence_losses.vespo import vespo_loss
from rlhf_plugin_soft_losses.gpg import gpg_loss
from rlhf_plugin_soft_losses.sapo import sapo_loss

from .batches import Batch
from .core_pairs import step_mean
from .pairs import Both, pair
from .released import load
from .stand_ins import trl_loss, verl_actor

OPENRLHF_LOSS = "models.loss.PolicyLoss"
TRL_LOSS = "trainer.grpo_trainer.GRPOTrainer._compute_loss"
CLIPPED = "losses.ppo.clipped_policy_loss"
CORE_ALGOS = "trainer.ppo.core_algos"
TO_POLICY = "policy_logprobs"


def our_inputs(batch: Batch, *, by_row: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What most of our losses begin with. ``by_row``: one advantage per sequence."""
    advantages = batch.broadcast_advantages if by_row else batch.advantages
    return batch.policy_logprobs, batch.old_logprobs, advantages, batch.mask


def verl_loss(
    batch: Batch, function: str, mode: str = "token-mean", *, by_row: bool = False, **config: Any
) -> Tensor:
    """Return what a policy loss of verl returns."""
    loss, _ = getattr(load("verl.trainer.ppo.core_algos"), function)(
        batch.old_logprobs,
        batch.policy_logprobs,
        batch.broadcast_advantages if by_row else batch.advantages,
        batch.float_mask,
        loss_agg_mode=mode,
        config=verl_actor(**config),
    )
    return loss


def openrlhf_loss(batch: Batch, **options: Any) -> Tensor:
    """Return what OpenRLHF's policy loss returns."""
    return load("openrlhf.models.loss").PolicyLoss(**options)(
        batch.policy_logprobs,
        batch.old_logprobs,
        batch.advantages,
        batch.float_mask,
        batch.rollout_logprobs,
    )[0]


def ours_clipped(
    batch: Batch,
    mode: str = "token-mean",
    *,
    by_row: bool = False,
    high: float = 0.28,
    dual: float | None = None,
) -> Tensor:
    """Our PPO loss, clip-higher by default."""
    result = clipped_policy_loss(
        *our_inputs(batch, by_row=by_row), clip_low=0.2, clip_high=high, dual_clip=dual
    )
    return step_mean(batch, result.loss, mode)


@pair("openrlhf", OPENRLHF_LOSS, CLIPPED, case="ppo, clip-higher", gradient=TO_POLICY)
def openrlhf_ppo(batch: Batch) -> Both:
    theirs = openrlhf_loss(batch, clip_eps_low=0.2, clip_eps_high=0.28)
    return Both(ours=ours_clipped(batch), theirs=theirs)


@pair("openrlhf", OPENRLHF_LOSS, CLIPPED, case="ppo, dual clip, per sequence", gradient=TO_POLICY)
def openrlhf_dual_clip(batch: Batch) -> Both:
    theirs = openrlhf_loss(batch, dual_clip=1.5, token_level_loss=False)
    ours = ours_clipped(batch, "seq-mean-token-mean", high=0.2, dual=1.5)
    return Both(ours=ours, theirs=theirs)


@pair("verl", f"{CORE_ALGOS}.compute_policy_loss_vanilla", CLIPPED, gradient=TO_POLICY)
def verl_vanilla(batch: Batch) -> Both:
    """Its dual clip is always on."""
    theirs = verl_loss(batch, "compute_policy_loss_vanilla", clip_ratio_high=0.28, clip_ratio_c=1.5)
    return Both(ours=ours_clipped(batch, dual=1.5), theirs=theirs)


@pair("verl", f"{CORE_ALGOS}.compute_policy_loss", CLIPPED, gradient=TO_POLICY)
def verl_deprecated(batch: Batch) -> Both:
    theirs, *_ = load("verl.trainer.ppo.core_algos").compute_policy_loss.__wrapped__(
        batch.old_logprobs,
        batch.policy_logprobs,
        batch.advantages,
        batch.float_mask,
        cliprange_low=0.2,
        cliprange_high=0.28,
        clip_ratio_c=1.5,
    )
    return Both(ours=ours_clipped(batch, dual=1.5), theirs=theirs)


def _trl_clipped(loss_type: str, mode: str) -> None:
    @pair("trl", TRL_LOSS, CLIPPED, case=loss_type, gradient=TO_POLICY)
    def compare(batch: Batch) -> Both:
        theirs = trl_loss(batch, loss_type, epsilon_high=0.28)
        return Both(ours=ours_clipped(batch, mode, by_row=True), theirs=theirs)


for _type, _mode in (
    ("grpo", "seq-mean-token-mean"),
    ("bnpo", "token-mean"),
    ("dapo", "token-mean"),
    ("dr_grpo", "seq-mean-token-sum-norm"),
):
    _trl_clipped(_type, _mode)


@pair("trl", TRL_LOSS, "math.kl_estimate", case="dapo, KL in the loss", gradient=TO_POLICY)
def trl_kl_in_loss(batch: Batch) -> Both:
    kl = kl_estimate(batch.policy_logprobs, batch.ref_logprobs, k3, action_mask=batch.mask)
    ours = ours_clipped(batch, by_row=True, high=0.2) + 0.3 * step_mean(batch, kl)
    return Both(ours=ours, theirs=trl_loss(batch, "dapo", beta=0.3))


@pair("trl", TRL_LOSS, CLIPPED, case="two-sided: delta 1.5", gradient=TO_POLICY)
def trl_delta(batch: Batch) -> Both:
    """Its delta bounds the ratio, which for a bad token is the dual clip."""
    theirs = trl_loss(batch, "dapo", delta=1.5)
    return Both(ours=ours_clipped(batch, by_row=True, high=0.2, dual=1.5), theirs=theirs)


def _trl_top_entropy(loss_type: str, mode: str) -> None:
    @pair("trl", TRL_LOSS, "math.highest_entropy", case=loss_type, gradient=TO_POLICY)
    def compare(batch: Batch) -> Both:
        """Its quantile is over a micro-batch, which is the whole update here, and the KL is of all tokens."""
        result = clipped_policy_loss(
            *our_inputs(batch, by_row=True), clip_low=0.2, clip_high=0.2, dual_clip=None
        )
        chosen = highest_entropy(batch.entropy[batch.mask].float().numpy(), 0.3)
        trained = torch.zeros_like(batch.mask).masked_scatter(
            batch.mask, torch.from_numpy(chosen) > 0
        )
        kl = kl_estimate(batch.policy_logprobs, batch.ref_logprobs, k3, action_mask=batch.mask)
        loss = torch.where(trained, result.loss, 0.0) + 0.3 * kl
        theirs = trl_loss(batch, loss_type, beta=0.3, top_entropy_quantile=0.3)
        return Both(ours=step_mean(batch, loss, mode), theirs=theirs)


@pair("trl", TRL_LOSS, "math.off_policy_mask", gradient=TO_POLICY)
def trl_off_policy_mask(batch: Batch) -> Both:
    """It compares with the old log-probs where it has none of the sampler."""
    kept = off_policy_mask(
        batch.policy_logprobs,
        batch.old_logprobs,
        batch.broadcast_advantages,
        batch.mask,
        threshold=0.05,
    )
    result = clipped_policy_loss(
        *our_inputs(batch, by_row=True), clip_low=0.2, clip_high=0.2, dual_clip=None
    )
    theirs = trl_loss(batch, "dapo", off_policy_mask_threshold=0.05)
    assert int(kept.sum()) < int(batch.mask.sum())
    return Both(ours=step_mean(batch, torch.where(kept, result.loss, 0.0)), theirs=theirs)


_trl_top_entropy("dapo", "token-mean")
_trl_top_entropy("grpo", "seq-mean-token-mean")


@pair(
    "verl",
    f"{CORE_ALGOS}.compute_policy_loss_geo_mean",
    "sequence_losses.gmpo.gmpo_loss",
    gradient=TO_POLICY,
)
def verl_gmpo(batch: Batch) -> Both:
    theirs = verl_loss(
        batch, "compute_policy_loss_geo_mean", by_row=True, clip_ratio_low=0.1, clip_ratio_high=0.3
    )
    return Both(ours=_our_gmpo(batch), theirs=theirs)


@pair(
    "trl",
    "experimental.gmpo.gmpo_trainer.GMPOTrainer._compute_loss",
    "sequence_losses.gmpo.gmpo_loss",
    gradient=TO_POLICY,
)
def trl_gmpo(batch: Batch) -> Both:
    theirs = trl_loss(
        batch,
        "grpo",
        trainer="trl.experimental.gmpo.gmpo_trainer.GMPOTrainer",
        epsilon_low=0.1,
        epsilon_high=0.3,
    )
    return Both(ours=_our_gmpo(batch), theirs=theirs)


def _our_gmpo(batch: Batch) -> Tensor:
    result = gmpo_loss(*our_inputs(batch, by_row=True), clip_low=0.1, clip_high=0.3)
    return step_mean(batch, result.loss, "seq-mean-token-mean")


@pair(
    "trl",
    TRL_LOSS,
    "sequence_losses.luspo.luspo_loss",
    case="luspo, sequence level",
    gradient=TO_POLICY,
)
def trl_luspo(batch: Batch) -> Both:
    """It sums over tokens; our nearest aggregation divides by the longest response too."""
    theirs = trl_loss(batch, "luspo", level="sequence", epsilon_low=0.1, epsilon_high=0.1)
    result = luspo_loss(*our_inputs(batch, by_row=True), clip_low=0.1, clip_high=0.1)
    ours = step_mean(batch, result.loss, "seq-mean-token-sum-norm") * batch.mask.shape[1]
    return Both(ours=ours, theirs=theirs)


def _our_vespo(batch: Batch, behavior: Tensor) -> Tensor:
    result = vespo_loss(
        batch.policy_logprobs,
        behavior,
        batch.broadcast_advantages,
        batch.mask,
        k_pos=2.0,
        lambda_pos=3.0,
        k_neg=3.0,
        lambda_neg=2.0,
    )
    return step_mean(batch, result.loss)


@pair("trl", TRL_LOSS, "sequence_losses.vespo.vespo_loss", case="vespo", gradient=TO_POLICY)
def trl_vespo(batch: Batch) -> Both:
    theirs = trl_loss(batch, "vespo")
    return Both(ours=_our_vespo(batch, batch.old_logprobs), theirs=theirs)


@pair(
    "trl",
    TRL_LOSS,
    "sequence_losses.vespo.vespo_loss",
    case="vespo, corrected for the sampler",
    gradient=TO_POLICY,
)
def trl_vespo_corrected(batch: Batch) -> Both:
    """Its per-token correction, without bounds, makes the sampler the behavior policy."""
    theirs = trl_loss(batch, "vespo", is_ratio=(batch.old_logprobs - batch.rollout_logprobs).exp())
    return Both(ours=_our_vespo(batch, batch.rollout_logprobs), theirs=theirs)


def _our_sapo(batch: Batch, *, by_row: bool) -> Tensor:
    result = sapo_loss(*our_inputs(batch, by_row=by_row), tau_pos=1.0, tau_neg=1.05)
    return step_mean(batch, result.loss, "seq-mean-token-mean")


@pair(
    "verl",
    f"{CORE_ALGOS}.compute_policy_loss_sapo",
    "soft_losses.sapo.sapo_loss",
    gradient=TO_POLICY,
)
def verl_sapo(batch: Batch) -> Both:
    theirs = verl_loss(batch, "compute_policy_loss_sapo")
    return Both(ours=_our_sapo(batch, by_row=False), theirs=theirs)


@pair("trl", TRL_LOSS, "soft_losses.sapo.sapo_loss", case="sapo", gradient=TO_POLICY)
def trl_sapo(batch: Batch) -> Both:
    return Both(ours=_our_sapo(batch, by_row=True), theirs=trl_loss(batch, "sapo"))


@pair(
    "verl", f"{CORE_ALGOS}.compute_policy_loss_gpg", "soft_losses.gpg.gpg_loss", gradient=TO_POLICY
)
def verl_gpg(batch: Batch) -> Both:
    ours = gpg_loss(batch.policy_logprobs, batch.advantages, batch.mask)
    theirs = verl_loss(batch, "compute_policy_loss_gpg")
    return Both(ours=step_mean(batch, ours), theirs=theirs)


@pair(
    "verl",
    f"{CORE_ALGOS}.compute_policy_loss_reinforce",
    "soft_losses.gpg.gpg_loss",
    gradient=TO_POLICY,
)
def verl_reinforce(batch: Batch) -> Both:
    ours = gpg_loss(batch.policy_logprobs, batch.advantages, batch.mask)
    theirs = verl_loss(batch, "compute_policy_loss_reinforce", "token-mean")
    return Both(ours=step_mean(batch, ours), theirs=theirs)


def _current_covariances(batch: Batch) -> Tensor:
    """verl's: of the policy being trained, within the loss; ours takes the policy before the step's updates."""
    return token_covariances(batch.advantages, batch.policy_logprobs.detach(), batch.mask)


@pair(
    "verl",
    f"{CORE_ALGOS}.compute_policy_loss_kl_cov",
    "covariance.covariance.kl_cov_loss",
    gradient=TO_POLICY,
)
def verl_kl_cov(batch: Batch) -> Both:
    theirs = verl_loss(
        batch,
        "compute_policy_loss_kl_cov",
        policy_loss={"kl_cov_ratio": 0.1, "ppo_kl_coef": 0.7},
    )
    chosen = largest_positive(
        _current_covariances(batch), batch.mask, count=num_selected(0.1, batch.mask)
    )
    ours = kl_cov_loss(*our_inputs(batch), chosen, kl_coef=0.7).loss
    return Both(ours=step_mean(batch, ours), theirs=theirs)


@pair(
    "verl",
    f"{CORE_ALGOS}.compute_policy_loss_clip_cov",
    "covariance.covariance.clip_cov_loss",
    gradient=TO_POLICY,
)
def verl_clip_cov(batch: Batch) -> Both:
    """As many as there are in the band, so that no draw decides."""
    theirs = verl_loss(
        batch,
        "compute_policy_loss_clip_cov",
        policy_loss={"clip_cov_ratio": 1.0, "clip_cov_lb": 0.1, "clip_cov_ub": 0.8},
    )
    clipped = clipped_policy_loss(*our_inputs(batch), clip_low=0.2, clip_high=0.2)
    chosen = drawn_within(
        _current_covariances(batch),
        batch.mask & ~(clipped.clipped_low | clipped.clipped_high),
        low=0.1,
        high=0.8,
        count=int(batch.mask.sum()),
        generator=torch.Generator(),
    )
    ours = clip_cov_loss(*our_inputs(batch), chosen, clip_low=0.2, clip_high=0.2).loss
    return Both(ours=step_mean(batch, ours), theirs=theirs)

"""The math of the core: masked statistics, KL, critic and aggregation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlhf_core.math import (
    adapted_entropy_coef,
    adapted_kl_coef,
    aggregate,
    group_mean,
    group_std,
    kl_estimate,
    masked_mean,
    masked_sum,
    masked_var,
    mismatch_metrics,
    reward_to_go,
    unbiased_kl,
    value_loss,
    whiten,
)
from rlhf_plugin_algorithms.kl.k1 import k1
from rlhf_plugin_algorithms.kl.k2 import k2
from rlhf_plugin_algorithms.kl.k3 import k3

from .batches import Batch
from .pairs import Both, pair
from .released import load
from .stand_ins import trl_step

KL_ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}
THEIRS_IS_FLOAT32 = "it casts its inputs to float32"


@pair("openrlhf", "models.utils.masked_mean", "math.masked_mean", gradient="values")
def openrlhf_masked_mean(batch: Batch) -> Both:
    theirs = load("openrlhf.models.utils").masked_mean(batch.values, batch.float_mask)
    return Both(ours=masked_mean(batch.values, batch.mask), theirs=theirs)


@pair("openrlhf", "models.utils.masked_normalize", "math.whiten", gradient="values")
def openrlhf_masked_normalize(batch: Batch) -> Both:
    """Theirs works along an axis; the whole batch is one row."""
    utils = load("openrlhf.models.utils")
    theirs = utils.masked_normalize(batch.values.reshape(1, -1), batch.float_mask.reshape(1, -1))
    return Both(ours=whiten(batch.values, batch.mask).reshape(1, -1), theirs=theirs)


@pair("verl", "utils.torch_functional.masked_sum", "math.masked_sum", gradient="values")
def verl_masked_sum(batch: Batch) -> Both:
    theirs = load("verl.utils.torch_functional").masked_sum(batch.values, batch.float_mask)
    return Both(ours=masked_sum(batch.values, batch.mask), theirs=theirs)


@pair("verl", "utils.torch_functional.masked_mean", "math.masked_mean", gradient="values")
def verl_masked_mean(batch: Batch) -> Both:
    theirs = load("verl.utils.torch_functional").masked_mean(batch.values, batch.float_mask)
    return Both(ours=masked_mean(batch.values, batch.mask), theirs=theirs)


@pair(
    "verl",
    "utils.torch_functional.masked_var",
    "math.masked_var",
    case="unbiased=False",
    gradient="values",
)
def verl_masked_var(batch: Batch) -> Both:
    functional = load("verl.utils.torch_functional")
    theirs = functional.masked_var(batch.values, batch.float_mask, unbiased=False)
    return Both(ours=masked_var(batch.values, batch.mask), theirs=theirs)


@pair(
    "verl",
    "utils.groupwise.group_mean_std",
    "math.group_mean, math.group_std",
    float32="it computes in float32",
)
def verl_group_mean_std(batch: Batch) -> Both:
    mean, std, _ = load("verl.utils.groupwise").group_mean_std(
        batch.rewards, batch.group, device="cpu"
    )
    ours = torch.stack(
        [group_mean(batch.rewards, batch.group), group_std(batch.rewards, batch.group)]
    )
    theirs = torch.stack([mean, std])[:, batch.group].double()
    return Both(ours=ours, theirs=theirs)


@pair("trl", "trainer.utils.nanstd", "math.group_std", equal_groups=True)
def trl_nanstd(batch: Batch) -> Both:
    grouped = batch.rewards.reshape(4, 3)
    theirs = load("trl.trainer.utils").nanstd(grouped, dim=1, keepdim=True).expand(4, 3).reshape(-1)
    return Both(ours=group_std(batch.rewards, batch.group), theirs=theirs)


@pair(
    "openrlhf",
    "trainer.ppo_utils.experience_maker.get_cumulative_returns",
    "math.reward_to_go",
)
def openrlhf_returns(batch: Batch) -> Both:
    maker = load("openrlhf.trainer.ppo_utils.experience_maker").RemoteExperienceMaker
    theirs = maker.get_cumulative_returns(None, batch.token_rewards, batch.float_mask, 0.9)
    ours = reward_to_go(batch.token_rewards, batch.mask, 0.9)
    return Both(ours=ours[batch.mask], theirs=theirs[batch.mask])


def _clamped(batch: Batch, estimator: str) -> Tensor:
    return kl_estimate(
        batch.policy_logprobs,
        batch.ref_logprobs,
        KL_ESTIMATORS[estimator],
        tail="clamp",
        action_mask=batch.mask,
    )


def _openrlhf_kl(estimator: str) -> None:
    @pair(
        "openrlhf",
        "models.utils.compute_approx_kl",
        "math.kl_estimate",
        case=estimator,
        gradient="policy_logprobs",
        float32=THEIRS_IS_FLOAT32,
    )
    def compare(batch: Batch) -> Both:
        utils = load("openrlhf.models.utils")
        theirs = utils.compute_approx_kl(
            batch.policy_logprobs, batch.ref_logprobs, kl_estimator=estimator
        )
        ours = _clamped(batch, estimator)
        return Both(ours=ours[batch.mask], theirs=theirs[batch.mask].double())


def _verl_kl(estimator: str) -> None:
    @pair(
        "verl",
        "trainer.ppo.core_algos.kl_penalty",
        "math.kl_estimate",
        case=estimator,
        gradient="policy_logprobs",
    )
    def compare(batch: Batch) -> Both:
        theirs = load("verl.trainer.ppo.core_algos").kl_penalty(
            batch.policy_logprobs, batch.ref_logprobs, estimator
        )
        ours = _clamped(batch, estimator)
        return Both(ours=ours[batch.mask], theirs=theirs[batch.mask])


def _openrlhf_unbiased_kl(estimator: str) -> None:
    @pair(
        "openrlhf",
        "models.utils.compute_approx_kl",
        "math.unbiased_kl",
        case=f"{estimator}, unbiased_gradient",
        gradient="policy_logprobs",
        float32=THEIRS_IS_FLOAT32,
    )
    def compare(batch: Batch) -> Both:
        theirs = load("openrlhf.models.utils").compute_approx_kl(
            batch.policy_logprobs,
            batch.ref_logprobs,
            batch.old_logprobs,
            kl_estimator=estimator,
            unbiased_gradient=True,
        )
        ours = unbiased_kl(
            batch.policy_logprobs,
            batch.old_logprobs,
            batch.ref_logprobs,
            KL_ESTIMATORS[estimator],
            batch.mask,
        )
        return Both(ours=ours[batch.mask], theirs=theirs[batch.mask].double())


def _verl_straight_through_kl(estimator: str) -> None:
    @pair(
        "verl",
        "trainer.ppo.core_algos.kl_penalty",
        "math.unbiased_kl",
        case=f"{estimator}+",
        gradient="policy_logprobs",
    )
    def compare(batch: Batch) -> Both:
        """Theirs has no importance weight: the policy itself is the old one."""
        policy = batch.policy_logprobs
        theirs = load("verl.trainer.ppo.core_algos").kl_penalty(
            policy, batch.ref_logprobs, f"{estimator}+"
        )
        ours = unbiased_kl(
            policy, policy.detach(), batch.ref_logprobs, KL_ESTIMATORS[estimator], batch.mask
        )
        return Both(ours=ours[batch.mask], theirs=theirs[batch.mask])


for _estimator in KL_ESTIMATORS:
    _openrlhf_kl(_estimator)
    _verl_kl(_estimator)
    _openrlhf_unbiased_kl(_estimator)
    _verl_straight_through_kl(_estimator)


@pair("verl", "trainer.ppo.rollout_corr_helper.compute_offpolicy_metrics", "math.mismatch_metrics")
def verl_mismatch(batch: Batch) -> Both:
    theirs = load("verl.trainer.ppo.rollout_corr_helper").compute_offpolicy_metrics(
        batch.old_logprobs, batch.rollout_logprobs, batch.float_mask
    )
    ours = mismatch_metrics(batch.old_logprobs, batch.rollout_logprobs, batch.mask)
    return Both(
        ours=_column([ours["mismatch/k1"].value(), ours["mismatch/k3"].value()]),
        theirs=_column([theirs["kl"], theirs["k3_kl"]]),
    )


@pair(
    "verl",
    "trainer.ppo.rollout_corr_helper.compute_is_metrics",
    "math.mismatch_metrics",
    case="ESS",
)
def verl_effective_sample_size(batch: Batch) -> Both:
    """Of weights that no threshold bounds."""
    log_ratio = batch.old_logprobs - batch.rollout_logprobs
    _, theirs = load("verl.trainer.ppo.rollout_corr_helper").compute_rollout_correction_weights(
        log_ratio, batch.float_mask, "token", 1e6
    )
    ours = mismatch_metrics(batch.old_logprobs, batch.rollout_logprobs, batch.mask)
    return Both(
        ours=_column([ours["mismatch/ess"].value()]),
        theirs=_column([theirs["rollout_is_eff_sample_size"]]),
    )


def _adapted(batch: Batch, controller: Any) -> Both:
    """Each row's first log-prob stands for the KL of one step."""
    ours, theirs = [], []
    coef = controller.value
    for kl in batch.old_logprobs[:, 0].abs().tolist():
        coef = adapted_kl_coef(coef, kl, target=0.6, num_samples=64, horizon=1000)
        controller.update(kl, 64)
        ours.append(coef)
        theirs.append(float(controller.value))
    return Both(ours=_column(ours), theirs=_column(theirs))


def _column(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@pair("openrlhf", "trainer.ppo_utils.kl_controller.AdaptiveKLController", "math.adapted_kl_coef")
def openrlhf_controller(batch: Batch) -> Both:
    controllers = load("openrlhf.trainer.ppo_utils.kl_controller")
    return _adapted(batch, controllers.AdaptiveKLController(0.01, 0.6, 1000))


@pair("verl", "trainer.ppo.core_algos.AdaptiveKLController", "math.adapted_kl_coef")
def verl_controller(batch: Batch) -> Both:
    core_algos = load("verl.trainer.ppo.core_algos")
    return _adapted(batch, core_algos.AdaptiveKLController(0.01, 0.6, 1000))


@pair("trl", "trainer.grpo_trainer.GRPOTrainer._compute_loss", "math.adapted_entropy_coef")
def trl_entropy_coef(batch: Batch) -> Both:
    """Over targets on both sides of the batch's entropy; bounded from below only."""
    ours, theirs = [], []
    entropy = float(masked_mean(batch.entropy, batch.mask))
    for target in (entropy - 0.1, entropy + 0.1):
        for coef in (0.001, 0.02):
            _, trainer = trl_step(
                batch,
                "dapo",
                use_adaptive_entropy=True,
                entropy_coef=coef,
                entropy_target=target,
                entropy_coef_delta=0.1 * entropy,
            )
            ours.append(adapted_entropy_coef(coef, entropy, target=target, step=0.1 * entropy))
            theirs.append(trainer.entropy_coef)
    return Both(ours=_column(ours), theirs=_column(theirs))


def step_mean(batch: Batch, loss: Tensor, mode: str = "token-mean") -> Tensor:
    """Our aggregation, with the batch as the whole step."""
    return aggregate(
        loss,
        batch.mask,
        mode,
        num_actions=int(batch.mask.sum()),
        num_sequences=len(batch.mask),
        max_actions=batch.mask.shape[1],
    )


@pair("openrlhf", "models.loss.ValueLoss", "math.value_loss", case="clipped", gradient="values")
def openrlhf_clipped_value_loss(batch: Batch) -> Both:
    return _openrlhf_value_loss(batch, 0.2)


@pair("openrlhf", "models.loss.ValueLoss", "math.value_loss", case="not clipped", gradient="values")
def openrlhf_plain_value_loss(batch: Batch) -> Both:
    return _openrlhf_value_loss(batch, None)


def _openrlhf_value_loss(batch: Batch, clip: float | None) -> Both:
    theirs = load("openrlhf.models.loss").ValueLoss(clip)(
        batch.values, batch.old_values, batch.returns, batch.float_mask
    )
    ours = value_loss(batch.values, batch.old_values, batch.returns, clip, action_mask=batch.mask)
    return Both(ours=step_mean(batch, ours), theirs=theirs)


@pair("verl", "trainer.ppo.core_algos.compute_value_loss", "math.value_loss", gradient="values")
def verl_value_loss(batch: Batch) -> Both:
    theirs, _ = load("verl.trainer.ppo.core_algos").compute_value_loss(
        batch.values, batch.returns, batch.old_values, batch.float_mask, 0.2
    )
    ours = value_loss(batch.values, batch.old_values, batch.returns, 0.2, action_mask=batch.mask)
    return Both(ours=step_mean(batch, ours), theirs=theirs)


def _verl_aggregation(mode: str) -> None:
    @pair("verl", "trainer.ppo.core_algos.agg_loss", "math.aggregate", case=mode, gradient="values")
    def compare(batch: Batch) -> Both:
        theirs = load("verl.trainer.ppo.core_algos").agg_loss(batch.values, batch.float_mask, mode)
        return Both(ours=step_mean(batch, batch.values, mode), theirs=theirs)


for _mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"):
    _verl_aggregation(_mode)


def _openrlhf_aggregation(mode: str) -> None:
    @pair("openrlhf", "models.loss.aggregate_loss", "math.aggregate", case=mode, gradient="values")
    def compare(batch: Batch) -> Both:
        """In two micro-batches, with the totals of the step."""
        totals = {
            "token_level_loss": mode == "token-mean",
            "batch_num_tokens": batch.float_mask.sum(),
            "global_batch_size": len(batch.mask),
        }
        loss = load("openrlhf.models.loss").aggregate_loss
        parts = (slice(0, 5), slice(5, None))
        theirs = sum(loss(batch.values[rows], batch.float_mask[rows], **totals) for rows in parts)
        ours = sum(
            aggregate(
                batch.values[rows],
                batch.mask[rows],
                mode,
                num_actions=int(batch.mask.sum()),
                num_sequences=len(batch.mask),
                max_actions=batch.mask.shape[1],
            )
            for rows in parts
        )
        return Both(ours=ours, theirs=theirs)


for _mode in ("token-mean", "seq-mean-token-mean"):
    _openrlhf_aggregation(_mode)

"""Intended differences in KL, losses and corrections."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlhf_core.contracts import StepColumns
from rlhf_core.math import adapted_kl_coef, aggregate, kl_estimate
from rlhf_plugin_algorithms.corrections.importance import importance_weights
from rlhf_plugin_algorithms.kl.k1 import k1
from rlhf_plugin_algorithms.kl.k3 import k3
from rlhf_plugin_algorithms.losses.gspo import gspo_loss
from rlhf_plugin_algorithms.losses.ppo import clipped_policy_loss
from rlhf_plugin_covariance.covariance import KlCovConfig, KlCovLoss, kl_cov_loss
from rlhf_plugin_sequence_losses.luspo import luspo_loss
from rlhf_plugin_supervised.distill import top_k_kl

from .batches import VOCABULARY, ragged, rows_of
from .core_pairs import KL_ESTIMATORS, step_mean
from .correction_pairs import kept_weights, ours
from .differences import difference
from .distillation_pairs import top_logprobs
from .pairs import EXACT, FLOAT32, Both
from .policy_loss_pairs import TRL_LOSS, openrlhf_loss, our_inputs, ours_clipped, verl_loss
from .released import load
from .stand_ins import trl_loss

VERL = "trainer.ppo.core_algos"


def _controller(peer: str, module: str) -> None:
    @difference(
        peer,
        f"{module}.AdaptiveKLController",
        "math.adapted_kl_coef",
        what="With more samples in a step than the horizon, the coefficient moves by at most 20 %; theirs by 20 "
        "% times "
        "samples / horizon, which beyond 5 makes it negative.",
        why="A negative coefficient rewards leaving the reference. They agree up to the horizon.",
    )
    def compute(agreeing: bool) -> Both:
        num_samples = 1000 if agreeing else 6000
        controller = load(f"{peer}.{module}").AdaptiveKLController(0.1, 1.0, 1000)
        controller.update(0.5, num_samples)
        ours = adapted_kl_coef(0.1, 0.5, target=1.0, num_samples=num_samples, horizon=1000)
        return Both(ours=_number(ours), theirs=_number(controller.value))


_controller("openrlhf", "trainer.ppo_utils.kl_controller")
_controller("verl", VERL)


def _unbounded_kl(estimator: str) -> None:
    @difference(
        "verl",
        f"{VERL}.kl_penalty",
        "math.kl_estimate",
        what=f"With the tail clamp, and in the reward, {estimator} is kept in [-10, 10] (as OpenRLHF), theirs is not; "
        "k3 is bounded by both.",
        why="One token must not outweigh the rewards of a whole batch. They agree up to 10 nats.",
    )
    def compute(agreeing: bool) -> Both:
        policy, ref = _far_apart(3.0 if agreeing else 30.0)
        theirs = load("verl.trainer.ppo.core_algos").kl_penalty(policy, ref, estimator)
        return Both(
            ours=kl_estimate(policy, ref, KL_ESTIMATORS[estimator], tail="clamp"), theirs=theirs
        )


def _tangent_of_k3(
    peer: str, function: str, estimate: Callable[[Tensor, Tensor], Tensor], tolerance: float
) -> None:
    @difference(
        peer,
        function,
        "math.kl_estimate",
        what="As a loss k3 goes on along its tangent beyond 10, by default; theirs stays at 10 without a gradient.",
        why="A clamp lets go of the tokens that are farthest from the reference. They agree below 10, and everywhere "
        "with the tail clamp.",
        tolerance=tolerance,
    )
    def compute(agreeing: bool) -> Both:
        policy, ref = _far_apart(-2.5 if agreeing else -5.0)
        return Both(ours=kl_estimate(policy, ref, k3), theirs=estimate(policy, ref).double())


def _verl_k3(policy: Tensor, ref: Tensor) -> Tensor:
    theirs: Tensor = load("verl.trainer.ppo.core_algos").kl_penalty(policy, ref, "k3")
    return theirs


def _openrlhf_k3(policy: Tensor, ref: Tensor) -> Tensor:
    utils = load("openrlhf.models.utils")
    theirs: Tensor = utils.compute_approx_kl(policy, ref, kl_estimator="k3")
    return theirs


_tangent_of_k3("verl", f"{VERL}.kl_penalty", _verl_k3, EXACT)
_tangent_of_k3("openrlhf", "models.utils.compute_approx_kl", _openrlhf_k3, FLOAT32)


for _estimator in ("k1", "k2"):
    _unbounded_kl(_estimator)


def _far_apart(nats: float) -> tuple[Tensor, Tensor]:
    """Log-probs of a policy and of a reference to which its token is that much less likely."""
    policy = torch.tensor([[-0.5]], dtype=torch.float64)
    return policy, policy - nats


@difference(
    "trl",
    TRL_LOSS,
    "math.kl_estimate",
    what="k3 goes on along its tangent beyond 10; theirs grows like e^30 where the reference has 30 nats more than the "
    "policy.",
    why="One token must not outweigh the rewards of a whole batch. They agree below 10.",
)
def trl_unbounded_k3(agreeing: bool) -> Both:
    batch = ragged(0)
    far = torch.where(batch.last, 2.0 if agreeing else 30.0, 0.0)
    with torch.no_grad():
        batch.ref_logprobs.copy_(torch.where(batch.mask, batch.policy_logprobs + far, 0.0))
    kl = kl_estimate(batch.policy_logprobs, batch.ref_logprobs, k3, action_mask=batch.mask)
    ours = ours_clipped(batch, by_row=True, high=0.2) + 0.1 * step_mean(batch, kl)
    return Both(ours=ours, theirs=trl_loss(batch, "dapo", beta=0.1))


@difference(
    "verl",
    f"{VERL}.compute_policy_loss_vanilla",
    "losses.ppo.clipped_policy_loss",
    what="The dual clip is off unless it is asked for; theirs is always on, at 3 by default.",
    why="PPO has none. They agree with dual_clip=3.",
)
def dual_clip(agreeing: bool) -> Both:
    batch = ragged(0)
    with torch.no_grad():  # some bad tokens that became 20 times as likely
        batch.old_logprobs.copy_(
            torch.where(batch.last, batch.policy_logprobs - 3.0, batch.old_logprobs)
        )
    ours = ours_clipped(batch, high=0.2, dual=3.0 if agreeing else None)
    return Both(ours=ours, theirs=verl_loss(batch, "compute_policy_loss_vanilla"))


@difference(
    "verl",
    f"{VERL}.agg_loss",
    "math.aggregate",
    what="A sequence without action tokens counts in the number of sequences; theirs leaves it out, unless the "
    "number is "
    "given, as its trainer does.",
    why="The divisor is a total of the step that is known before it is cut. They agree with the number given.",
)
def empty_rows(agreeing: bool) -> Both:
    batch = ragged(0)
    mask = batch.mask.clone()
    mask[1] = False
    given = {"global_batch_size": len(mask)} if agreeing else {}
    theirs = load("verl.trainer.ppo.core_algos").agg_loss(
        batch.returns, mask.double(), "seq-mean-token-mean", **given
    )
    ours = aggregate(
        batch.returns,
        mask,
        "seq-mean-token-mean",
        num_actions=int(mask.sum()),
        num_sequences=len(mask),
        max_actions=mask.shape[1],
    )
    return Both(ours=ours, theirs=theirs)


@difference(
    "verl",
    "trainer.ppo.rollout_corr_helper.compute_rollout_rejection_mask",
    "corrections.importance.importance_weights",
    what="A token that a correction drops still counts in the denominator (as OpenRLHF, TRL); theirs leaves the "
    "mask, so "
    "that those left count more.",
    why="A step whose data is mostly rejected should be small. They agree with our denominator for both.",
)
def dropped_tokens(agreeing: bool) -> Both:
    batch = ragged(0)
    helper = load("verl.trainer.ppo.rollout_corr_helper")
    left, _ = helper.compute_rollout_rejection_mask(
        batch.old_logprobs - batch.rollout_logprobs, batch.float_mask, "token_k1", "0.8_1.4"
    )
    loss = clipped_policy_loss(*our_inputs(batch), clip_low=0.2, clip_high=0.2).loss
    theirs = load("verl.trainer.ppo.core_algos").agg_loss(
        loss, left, "token-mean", batch_num_tokens=batch.mask.sum() if agreeing else None
    )
    result = importance_weights(
        batch.old_logprobs,
        batch.rollout_logprobs,
        batch.mask,
        level="token",
        mode="mask",
        gate="ratio",
        low=1 / 1.4,
        high=1 / 0.8,
        weight="off",
        max_weight=None,
    )
    return Both(ours=step_mean(batch, torch.where(result.keep, loss, 0.0)), theirs=theirs)


@difference(
    "verl",
    f"{VERL}.compute_policy_loss_kl_cov",
    "covariance.covariance.KlCovLoss",
    what="Tokens are chosen once per optimizer step, by the log-probs of the policy before its updates; theirs "
    "chooses "
    "in each micro-batch, by those of the current policy.",
    why="A step must not depend on how it is cut. They agree on one micro-batch of the first update.",
)
def chosen_once(agreeing: bool) -> Both:
    batch = ragged(0)
    if agreeing:
        with torch.no_grad():
            batch.old_logprobs.copy_(batch.policy_logprobs)
    theirs = verl_loss(batch, "compute_policy_loss_kl_cov", policy_loss={"kl_cov_ratio": 0.2})
    loss = KlCovLoss(KlCovConfig(fraction=0.2))
    step = StepColumns(
        advantages=batch.advantages, action_mask=batch.mask, old_logprobs=batch.old_logprobs
    )
    chosen = loss.prepare(step)["penalized"] > 0.5
    ours = kl_cov_loss(*our_inputs(batch), chosen, kl_coef=1.0).loss
    return Both(ours=step_mean(batch, ours), theirs=theirs)


@difference(
    "trl",
    TRL_LOSS,
    "sequence_losses.luspo.luspo_loss",
    what="The sum over a sequence's tokens is divided by the longest response that the run allows; theirs is not.",
    why="The learning rate keeps its scale when the limit changes. They agree with that factor.",
)
def luspo_scale(agreeing: bool) -> Both:
    batch = ragged(0)
    theirs = trl_loss(batch, "luspo", level="sequence", epsilon_low=0.1, epsilon_high=0.1)
    loss = luspo_loss(*our_inputs(batch, by_row=True), clip_low=0.1, clip_high=0.1).loss
    ours = step_mean(batch, loss, "seq-mean-token-sum-norm")
    return Both(ours=ours * batch.mask.shape[1] if agreeing else ours, theirs=theirs)


@difference(
    "openrlhf",
    "models.utils.compute_approx_kl",
    "math.kl_estimate",
    what="The dtype of the log-probs is kept where it is float64; theirs is always float32.",
    why="So that gradients can be checked. They agree to the rounding of float32.",
    tolerance=FLOAT32,
)
def kept_dtype(agreeing: bool) -> Both:
    """Two log-probs whose difference float32 cannot hold, and two whose it can."""
    policy, ref = _far_apart(0.5 if agreeing else 1e-9)
    scale = 1.0 if agreeing else 1e9
    theirs = load("openrlhf.models.utils").compute_approx_kl(policy, ref)
    return Both(ours=kl_estimate(policy, ref, k1) * scale, theirs=theirs.double() * scale)


def _number(value: float) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64)


@difference(
    "openrlhf",
    "models.loss.PolicyLoss",
    "losses.gspo.gspo_loss",
    what="A correction weights and drops under GSPO as under any loss; with one, theirs puts the sampler in the "
    "place of "
    "the old policy in the ratio, and weights and drops nothing.",
    why="A mode and a threshold that a user sets must act. They agree where sampler and old policy are the same.",
)
def corrected_gspo(agreeing: bool) -> Both:
    batch = ragged(0)
    if agreeing:
        batch.rollout_logprobs.copy_(batch.old_logprobs)
    theirs = openrlhf_loss(
        batch,
        policy_loss_type="gspo",
        is_correction_level="token",
        is_correction_threshold=[0.7, 1.3],
    )
    loss = gspo_loss(*our_inputs(batch), clip_low=0.2, clip_high=0.2).loss
    weights = kept_weights(ours(batch, "token", "mask", low=0.7, high=1.3))
    return Both(ours=step_mean(batch, loss * weights, "seq-mean-token-mean"), theirs=theirs)


@difference(
    "trl",
    TRL_LOSS,
    "math.aggregate",
    what="A token's weight does not depend on how a step is cut into micro-batches; in theirs (bnpo) each "
    "micro-batch "
    "divides by its own tokens.",
    why="The memory of the machine must not change the gradient. They agree on a step that is not cut.",
)
def cut_step(agreeing: bool) -> Both:
    batch = ragged(0)
    parts = [batch] if agreeing else [rows_of(batch, slice(0, 4)), rows_of(batch, slice(4, None))]
    theirs = torch.stack([trl_loss(part, "bnpo") for part in parts]).mean()
    return Both(ours=ours_clipped(batch, by_row=True, high=0.2), theirs=theirs)


@difference(
    "verl",
    "trainer.distillation.fsdp.losses.kl_divergence",
    "supervised.distill.top_k_kl",
    what="All tokens beyond the teacher's k are one more outcome (as TRL with a tail bucket); theirs leaves "
    "them out, so "
    "its sum is no divergence and can be negative.",
    why="Moving probability away from the k tokens must not pay. They agree if k is the whole vocabulary.",
    tolerance=FLOAT32,
)
def rest_of_the_vocabulary(agreeing: bool) -> Both:
    """Forward KL; theirs computes in float32."""
    batch = ragged(0)
    policy, teacher = top_logprobs(batch, VOCABULARY if agreeing else 2)
    theirs = load("verl.trainer.distillation.fsdp.losses").kl_divergence(policy, teacher)
    result = top_k_kl(policy, teacher, batch.mask, forward=True).kl
    return Both(ours=result[batch.mask], theirs=theirs[batch.mask].double())

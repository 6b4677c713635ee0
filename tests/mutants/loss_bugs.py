"""Bugs in policy losses and importance weights: normalization, masks, signs, gradients, overflow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from rlhf_core.contracts import Metric

from .mutant import Mutant

HOOK = "rlhf_policy_losses"
CLIPPED = "rlhf_plugin_algorithms.losses.ppo:clipped_policy_loss"
Function = Callable[..., Any]


def per_micro_batch_mean(right: Any) -> Function:
    """Divided by the tokens of whatever happens to share the micro-batch."""

    def wrong(inputs: Any) -> Any:
        result = right(inputs)
        return replace(result, loss=result.loss / inputs.action_mask.sum())

    return wrong


def advantages_normalized_in_the_loss(right: Any) -> Function:
    def wrong(inputs: Any) -> Any:
        kept = inputs.advantages[inputs.action_mask]
        advantages = (inputs.advantages - kept.mean()) / (kept.std(correction=0) + 1e-8)
        return right(replace(inputs, advantages=advantages))

    return wrong


def mask_by_multiplication(right: Function) -> Function:
    def wrong(policy, old, advantages, mask, *, clip_low, clip_high, dual_clip=None):
        result = right(
            policy, old, advantages, mask, clip_low=clip_low, clip_high=clip_high, dual_clip=None
        )
        ratio = ((policy - old) * mask).minimum(torch.tensor(20.0, dtype=old.dtype)).exp()
        clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
        return result._replace(loss=-torch.minimum(ratio * advantages, clipped * advantages) * mask)

    return wrong


def unclamped_exp(right: Function) -> Function:
    def wrong(policy, old, advantages, mask, *, clip_low, clip_high, dual_clip=None):
        result = right(
            policy, old, advantages, mask, clip_low=clip_low, clip_high=clip_high, dual_clip=None
        )
        ratio = torch.where(mask, policy - old, 0.0).exp()
        kept = torch.where(mask, advantages, 0.0)
        clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
        return result._replace(loss=-torch.minimum(ratio * kept, clipped * kept))

    return wrong


def wrong_sign(right: Any) -> Function:
    def wrong(inputs: Any) -> Any:
        result = right(inputs)
        return replace(result, loss=-result.loss)

    return wrong


def ratio_upside_down(right: Function) -> Function:
    def wrong(policy, old, advantages, mask, **options):
        return right(old, policy, advantages, mask, **options)

    return wrong


def sequence_ratio_over_padding(right: Function) -> Function:
    """The mean log-ratio of a row is divided by the width of the micro-batch."""

    def wrong(policy, old, advantages, mask, **options):
        log_ratio = torch.where(mask, policy - old, 0.0).mean(dim=1, keepdim=True)
        spread = old + log_ratio.expand_as(old)
        return right(torch.where(mask, spread, old), old, advantages, mask, **options)

    return wrong


def old_not_detached(right: Any) -> Function:
    """In an on-policy step old and policy are one tensor, and the gradient of their ratio is 0."""

    def wrong(inputs: Any) -> Any:
        return right(replace(inputs, old_logprobs=inputs.old_logprobs + inputs.policy_logprobs
                             - inputs.policy_logprobs.detach()))  # fmt: skip

    return wrong


def advantages_in_place(right: Any) -> Function:
    def wrong(inputs: Any) -> Any:
        inputs.advantages.mul_(inputs.action_mask)
        return right(inputs)

    return wrong


def metric_of_means(right: Any) -> Function:
    def wrong(inputs: Any) -> Any:
        result = right(inputs)
        means = {name: Metric(metric.value() or 0.0) for name, metric in result.metrics.items()}
        return replace(result, metrics=means)

    return wrong


def metric_with_a_graph(right: Any) -> Function:
    def wrong(inputs: Any) -> Any:
        result = right(inputs)
        return replace(
            result, metrics={"loss/mean": Metric(result.loss.sum(), result.loss.numel())}
        )

    return wrong


def kept_share_in_the_divisor(right: Any) -> Function:
    """Tokens outside of the clip range are dropped from the denominator."""

    def wrong(inputs: Any) -> Any:
        result = right(inputs)
        ratio = (inputs.policy_logprobs - inputs.old_logprobs).detach().exp()
        inside = ((ratio > 0.95) & (ratio < 1.05) & inputs.action_mask).sum().clamp(min=1)
        share = inside / inputs.action_mask.sum()
        return replace(result, loss=result.loss / share)

    return wrong


def _loss(bug: str, source: str, wrap: Function, target: str = "") -> Mutant:
    return Mutant(bug=bug, source=source, hook=HOOK, component="ppo", target=target, wrap=wrap)


MUTANTS = (
    _loss(
        "the loss is normalized by the tokens of its micro-batch",
        "verl#6957, #5366; prime-rl#2034; TRL#6439",
        per_micro_batch_mean,
    ),
    _loss(
        "advantages are whitened once more within each micro-batch",
        "the class of verl#7225, a statistic per micro-batch",
        advantages_normalized_in_the_loss,
    ),
    _loss(
        "the loss is masked by multiplication, nan comes through",
        "OpenRLHF#1240",
        mask_by_multiplication,
        CLIPPED,
    ),
    _loss(
        "the ratio overflows: exp without a clamp",
        "OpenRLHF 0.11.2, an importance weight without a cap",
        unclamped_exp,
        CLIPPED,
    ),
    _loss("the loss has the wrong sign", "the class of TRL#5731, a wrong fused loss", wrong_sign),
    _loss(
        "the ratio is upside down: old / policy",
        "the class of TRL#4857, wrong log-probs in a comparison",
        ratio_upside_down,
        CLIPPED,
    ),
    _loss(
        "a sequence's mean log-ratio counts padding",
        "the class of TRL#6478, a normalizer that changes the loss",
        sequence_ratio_over_padding,
        CLIPPED,
    ),
    _loss(
        "the old log-probs are not detached, the gradient cancels",
        "the class of verl#2088, old and new log-probs mixed up",
        old_not_detached,
    ),
    _loss(
        "the advantages are changed in place",
        "the class of TRL#5147, a write into memory of others",
        advantages_in_place,
    ),
    _loss(
        "a metric is a mean of the micro-batches' means",
        "verl#5366, #5417, means of means at dp > 1",
        metric_of_means,
    ),
    _loss(
        "a metric keeps the graph alive",
        "the class of ms-swift#9991, memory that is not released",
        metric_with_a_graph,
    ),
    _loss(
        "clipped tokens are dropped from the denominator",
        "SkyRL#1296, token-mean redefined",
        kept_share_in_the_divisor,
    ),
)

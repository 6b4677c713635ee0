"""Bugs in corrections between the sampler's policy and the trainer's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from rlhf_core.contracts import Metric

from .mutant import Mutant

Function = Callable[..., Any]


def keeps_the_graph(right: Any) -> Function:
    """A gradient flows through the weights."""

    def wrong(old: Any, rollout: Any, mask: Any) -> Any:
        result = right(old, rollout, mask)
        log_ratio = torch.where(mask, old - rollout, 0.0)
        return replace(result, weights=result.weights * (log_ratio - log_ratio.detach()).exp())

    return wrong


def upside_down(right: Any) -> Function:
    def wrong(old: Any, rollout: Any, mask: Any) -> Any:
        return right(rollout, old, mask)

    return wrong


def normalized_in_the_micro_batch(right: Any) -> Function:
    """Weights are divided by their mean over whatever shares the micro-batch."""

    def wrong(old: Any, rollout: Any, mask: Any) -> Any:
        result = right(old, rollout, mask)
        mean = torch.where(mask, result.weights, 0.0).sum() / mask.sum().clamp(min=1)
        return replace(result, weights=result.weights / mean.clamp(min=1e-8))

    return wrong


def row_mean_with_padding(right: Any) -> Function:
    """A row's mean log-ratio, divided by the width of the micro-batch, multiplies its weights."""

    def wrong(old: Any, rollout: Any, mask: Any) -> Any:
        result = right(old, rollout, mask)
        mean = torch.where(mask, old - rollout, 0.0).detach().mean(dim=1, keepdim=True)
        return replace(result, weights=result.weights * mean.clamp(-5, 5).exp())

    return wrong


def no_cap(right: Any) -> Function:
    def wrong(old: Any, rollout: Any, mask: Any) -> Any:
        result = right(old, rollout, mask)
        return replace(result, weights=torch.where(mask, old - rollout, 0.0).detach().exp())

    return wrong


def masked_by_multiplication(right: Any) -> Function:
    def wrong(old: Any, rollout: Any, mask: Any) -> Any:
        result = right(old, rollout, mask)
        row = ((old - rollout) * mask).detach().sum(dim=1, keepdim=True)
        return replace(result, weights=result.weights + 0.0 * row)

    return wrong


def mean_of_means(right: Any) -> Function:
    def wrong(old: Any, rollout: Any, mask: Any) -> Any:
        result = right(old, rollout, mask)
        mean = torch.where(mask, result.weights, 0.0).sum() / mask.sum().clamp(min=1)
        return replace(result, metrics={**result.metrics, "correction/mean": Metric(mean)})

    return wrong


def kept_share_in_the_weights(right: Any) -> Function:
    """Tokens with a ratio far from 1 are dropped, and the others are scaled up to make up for them."""

    def wrong(old: Any, rollout: Any, mask: Any) -> Any:
        result = right(old, rollout, mask)
        near = mask & ((old - rollout).abs() < 0.1)
        share = near.sum().clamp(min=1) / mask.sum().clamp(min=1)
        return replace(result, keep=result.keep & near, weights=result.weights / share)

    return wrong


def _correction(bug: str, source: str, wrap: Function) -> Mutant:
    return Mutant(bug=bug, source=source, hook="rlhf_is_corrections", component="tis", wrap=wrap)


MUTANTS = (
    _correction(
        "a gradient flows through the importance weights",
        "the class of verl#2953, a correction added afterwards",
        keeps_the_graph,
    ),
    _correction(
        "the weights are upside down: sampler / trainer",
        "the class of TRL#3867, TRL#4857",
        upside_down,
    ),
    _correction(
        "weights are normalized within the micro-batch",
        "the class of verl#7225, a statistic per micro-batch",
        normalized_in_the_micro_batch,
    ),
    _correction(
        "a row's mean log-ratio counts padding",
        "the class of TRL#6478, a normalizer that changes the loss",
        row_mean_with_padding,
    ),
    _correction(
        "the weights have no cap",
        "OpenRLHF 0.11.2, unclamped weight in mask mode",
        no_cap,
    ),
    _correction(
        "nan at padding comes into the weights",
        "OpenRLHF#1240, masking by multiplication",
        masked_by_multiplication,
    ),
    _correction(
        "a metric is a mean of the micro-batches' means",
        "verl#5366, #5417, means of means at dp > 1",
        mean_of_means,
    ),
    _correction(
        "dropped tokens leave the denominator",
        "SkyRL#1296, token-mean redefined",
        kept_share_in_the_weights,
    ),
)

"""Ratios of trainer and sampler in float64, and a correction with its metrics, for all corrections.

``g_t = log trainer - log sampler`` of a token is the symbol of all files here that are corrections.
"""

from __future__ import annotations

from typing import NamedTuple

from rlhf_core.contracts import Correction, Metric, Metrics
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import MAX_LOG_RATIO, masked_sum

MIN_PROB = 1e-6
NEEDS = frozenset({"rollout_logprobs"})
CONFLICTS = frozenset({"renormalized_sampling", "rollout_as_old"})
"""The sampler's log-probs would be of another distribution, or the very numbers that they are compared with."""


class ImportanceWeights(NamedTuple):
    """Weights of tokens, and which are kept. 0 or False at padding."""

    weights: Float[torch.Tensor, "b a"]
    """Weight of each token, dropped ones included."""
    keep: Bool[torch.Tensor, "b a"]
    """False: the token is dropped."""
    bounded: Bool[torch.Tensor, "b a"]
    """True: the weight is a bound instead of the ratio."""


def log_ratios(
    old_logprobs: Float[torch.Tensor, "b a"],
    rollout_logprobs: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
) -> Float[torch.Tensor, "b a"]:
    """Return ``g_t`` in float64, so that a sum over 10,000 tokens keeps its digits; 0 at padding, and no gradient."""
    # Padding is replaced before the arithmetic: what stands there, nan included, has no effect.
    old, rollout = (
        torch.where(action_mask, column.detach(), 0.0).double()
        for column in (old_logprobs, rollout_logprobs)
    )
    return old - rollout


def ratios(log_ratio: Float[torch.Tensor, "b u"]) -> Float[torch.Tensor, "b u"]:
    """Return ``exp(log_ratio)``, the exponent clamped to [-20, 20]."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def probability(logprobs: Float[torch.Tensor, "b a"]) -> Float[torch.Tensor, "b a"]:
    """Return the probabilities in float64, kept in [1e-6, 1 - 1e-6], so that binary divergences are finite."""
    return logprobs.detach().double().exp().clamp(MIN_PROB, 1 - MIN_PROB)


def at_most(ratio: Float[torch.Tensor, "b u"], bound: float | None) -> Float[torch.Tensor, "b u"]:
    """Return ``min(ratio, bound)``; the ratio itself where there is no bound."""
    return ratio if bound is None else ratio.clamp(max=bound)


def importance_metrics(
    result: ImportanceWeights, action_mask: Bool[torch.Tensor, "b a"]
) -> Metrics:
    """Return the metrics of a correction: the mean weight of kept tokens, and the shares dropped and bounded.

    ``correction/weight`` and ``correction/clipped_weights`` are means over kept tokens, ``correction/dropped_tokens``
    is a mean over action tokens, and ``correction/dropped_sequences`` a mean over the rows that have action tokens.
    """
    kept, tokens = result.keep.sum(), action_mask.sum()
    sequences = action_mask.any(dim=1).sum()
    kept_sequences = result.keep.any(dim=1).sum()
    return {
        "correction/weight": Metric(masked_sum(result.weights, result.keep), kept),
        "correction/dropped_tokens": Metric(tokens - kept, tokens),
        "correction/dropped_sequences": Metric(sequences - kept_sequences, sequences),
        "correction/clipped_weights": Metric((result.bounded & result.keep).sum(), kept),
    }


def weighted(
    ratio: Float[torch.Tensor, "b u"],
    weights: Float[torch.Tensor, "b u"],
    keep: Bool[torch.Tensor, "b k"],
    action_mask: Bool[torch.Tensor, "b a"],
    dtype: torch.dtype,
) -> ImportanceWeights:
    """Return the weights by token. Where a row has one number (``u`` or ``k`` is 1), it is each token's.

    Args:
        ratio: what the weights are before a bound; where a weight differs from it, it counts as bounded.
        weights: weights in float64.
        keep: False: the token is dropped.
        dtype: floating-point type of the weights that are returned.
    """
    return ImportanceWeights(
        weights=torch.where(action_mask, weights, 0.0).to(dtype),
        keep=action_mask & keep,
        bounded=action_mask & (weights != ratio),
    )


def correction(
    ratio: Float[torch.Tensor, "b u"],
    weights: Float[torch.Tensor, "b u"],
    keep: Bool[torch.Tensor, "b k"],
    action_mask: Bool[torch.Tensor, "b a"],
    dtype: torch.dtype,
) -> Correction:
    """Return ``weighted`` as a correction, with its metrics."""
    return measured(weighted(ratio, weights, keep, action_mask, dtype), action_mask)


def measured(result: ImportanceWeights, action_mask: Bool[torch.Tensor, "b a"]) -> Correction:
    """Return the weights as a correction, with their metrics."""
    return Correction(
        weights=result.weights, keep=result.keep, metrics=importance_metrics(result, action_mask)
    )

"""Importance weights between two policies at sampled tokens, and the tokens that they keep or drop.

Everything is in float64 and in log space until the end: a ratio of a whole sequence is the exponential of a sum of
thousands of small differences.

``U`` counts the units of a row that are kept or dropped together: its ``A`` tokens, or the whole row (``U = 1``).
"""

from __future__ import annotations

from typing import NamedTuple

from ..batch.metric import Metric, Metrics
from ..lazy import Bool, Float, torch
from .masked import masked_sum
from .ratios import MAX_LOG_RATIO

MIN_PROB = 1e-6
"""Probabilities are kept in [1e-6, 1 - 1e-6] in the binary divergences, so that their logarithms are finite."""


class ImportanceWeights(NamedTuple):
    """Weights of tokens, and which are kept. 0 or False at padding."""

    weights: Float[torch.Tensor, "b a"]
    """Weight of each token, dropped ones included."""
    keep: Bool[torch.Tensor, "b a"]
    """False: the token is dropped."""
    bounded: Bool[torch.Tensor, "b a"]
    """True: the weight is a bound instead of the ratio."""


def importance_weights(
    old_logprobs: Float[torch.Tensor, "b a"],
    rollout_logprobs: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    *,
    level: str,
    mode: str,
    gate: str,
    high: float,
    low: float | None = None,
    weight: str = "token",
    max_weight: float | None = None,
) -> ImportanceWeights:
    """Return the weights that turn an expectation under the sampler into one under the trainer's old policy.

    With ``w`` the ratio at ``level`` (see ``_ratio``) and ``s`` the number that ``gate`` judges by at that level, which
    is w itself for the gate ``ratio`` and else a divergence (see ``_divergence``):

    - mode ``truncate``: weight ``min(w, high)``; mode ``clip``: weight ``clamp(w, low, high)``. All tokens are kept.
    - mode ``mask``: kept where ``low <= s <= high``, with the weight ``min(ratio at level weight, max_weight)``.

    Equal log-probs give weight 1 and keep everything. No gradient flows through the result. NaN at padding has no
    effect. Rows do not depend on each other.

    Args:
        old_logprobs: log-probs of the trainer before its updates.
        rollout_logprobs: log-probs of the sampler.
        level: ``token``, ``sequence`` or ``geometric``.
        mode: ``truncate``, ``clip`` or ``mask``.
        gate: for mode ``mask``: ``ratio``, ``binary_kl``, ``tv``, ``k2`` or ``k3``.
        high: upper bound: of a ratio, at least 1; of a divergence, in nats, or in probability for ``tv``.
        low: lower bound of a ratio, at most 1; None: no lower bound.
        weight: for mode ``mask``: the level of the weight, or ``off`` for weight 1.
        max_weight: for mode ``mask``: upper bound of the weight; None: no bound.

    Raises:
        ValueError: the gate is unknown.

    Source: truncation: Yao et al. 2025, https://fengyao.notion.site/off-policy-rl, after Ionides 2008; masks of
    tokens: Ling Team 2025 (IcePop), arXiv:2510.18855; masks of sequences: Liu et al. 2025,
    https://richardli.xyz/rl-collapse; divergence gates: OpenRLHF 0.11 and verl 0.9.
    """
    # Padding is replaced before the arithmetic; float64 so that a sum over 10,000 tokens keeps its digits.
    old, rollout = (
        torch.where(action_mask, column.detach(), 0.0).double()
        for column in (old_logprobs, rollout_logprobs)
    )  # (B, A)
    log_ratio = old - rollout
    if mode == "mask":
        if gate == "ratio":
            judged = _ratio(log_ratio, action_mask, level)  # (B, A) or (B, 1)
        else:
            judged = _divergence(gate, old, rollout, action_mask, level)
        keep = judged <= high
        if low is not None:
            keep = keep & (judged >= low)
        raw = _ratio(log_ratio, action_mask, weight) if weight != "off" else torch.ones_like(judged)
        bounded = raw.clamp(max=max_weight) if max_weight is not None else raw
    else:
        raw = _ratio(log_ratio, action_mask, level)
        keep = torch.ones_like(action_mask)
        bounded = raw.clamp(min=low if mode == "clip" else None, max=high)
    return ImportanceWeights(
        weights=torch.where(action_mask, bounded, 0.0).to(old_logprobs.dtype),
        keep=action_mask & keep,
        bounded=action_mask & (bounded != raw),
    )


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


def _ratio(
    log_ratio: Float[torch.Tensor, "b a"], action_mask: Bool[torch.Tensor, "b a"], level: str
) -> Float[torch.Tensor, "b u"]:
    """Return trainer / sampler probabilities of each token, or one number per row.

    ``exp(g)`` for ``token``; ``exp(sum of g)``, the ratio of the whole response, for ``sequence``; ``exp(mean of g)``,
    the geometric mean of the row's ratios, for ``geometric``. The exponent is clamped to [-20, 20]. A row without
    actions has ratio 1.

    Args:
        log_ratio: g, trainer minus sampler; 0 at padding.
    """
    return (
        _of_units(log_ratio, action_mask, level).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    )  # (B, A) or (B, 1)


def _divergence(
    gate: str,
    old_logprobs: Float[torch.Tensor, "b a"],
    rollout_logprobs: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    level: str,
) -> Float[torch.Tensor, "b u"]:
    """Return a divergence of the trainer's from the sampler's policy at sampled tokens; 0 for equal log-probs, never
    negative.

    With ``p`` the sampler's and ``q`` the trainer's probability of the token and ``g = log q - log p``:

    - ``binary_kl``: ``p log(p/q) + (1-p) log((1-p)/(1-q))``, the KL of "this token or another".
    - ``tv``: ``abs(p - q)``, the total variation of the same two outcomes.
    - ``k2``: ``g^2 / 2``, and ``k3``: ``exp(g) - 1 - g``: estimates of KL(sampler || trainer); g is clamped to
      [-20, 20].

    Level ``token`` keeps each token's number, ``sequence`` adds them up over the row, ``geometric`` takes their mean.

    Args:
        old_logprobs: log-probs of the trainer; 0 at padding.
        rollout_logprobs: log-probs of the sampler; 0 at padding.

    Raises:
        ValueError: the gate is unknown.
    """
    match gate:
        case "binary_kl":
            p, q = _prob(rollout_logprobs), _prob(old_logprobs)
            of_tokens = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
        case "tv":
            of_tokens = (_prob(rollout_logprobs) - _prob(old_logprobs)).abs()
        case "k2":
            of_tokens = _bounded(old_logprobs - rollout_logprobs).square() / 2
        case "k3":
            log_ratio = _bounded(old_logprobs - rollout_logprobs)
            of_tokens = torch.expm1(log_ratio) - log_ratio
        case _:
            raise ValueError(f"gate {gate!r}: expected 'binary_kl', 'tv', 'k2' or 'k3'")
    return _of_units(torch.where(action_mask, of_tokens, 0.0), action_mask, level)


def _of_units(of_tokens: torch.Tensor, action_mask: torch.Tensor, level: str) -> torch.Tensor:
    """Return (B, A) the numbers of tokens for level ``token``, or (B, 1) their sum or mean over the row."""
    if level == "token":
        return of_tokens
    total = of_tokens.sum(dim=1, keepdim=True)
    if level == "sequence":
        return total
    assert level == "geometric", level
    return total / action_mask.sum(dim=1, keepdim=True).clamp(min=1)


def _prob(logprobs: torch.Tensor) -> torch.Tensor:
    return logprobs.exp().clamp(MIN_PROB, 1 - MIN_PROB)


def _bounded(log_ratio: torch.Tensor) -> torch.Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

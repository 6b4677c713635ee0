"""How far a token or a sequence is from what the trainer would have sampled: ratios and divergences.

Everything is in float64 and in log space until the end: a ratio of a whole sequence is the exponential of a sum of
thousands of small differences.

``U`` units are judged: the ``A`` tokens of a row, or the row alone, ``U = 1``.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.math import MAX_LOG_RATIO

MIN_PROB = 1e-6
"""Probabilities are kept in [1e-6, 1 - 1e-6] in the binary divergences, so that their logarithms are finite."""


def ratio(
    log_ratio: Float[Tensor, "b a"], action_mask: Bool[Tensor, "b a"], level: str
) -> Float[Tensor, "b u"]:
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


def divergence(
    gate: str,
    old_logprobs: Float[Tensor, "b a"],
    rollout_logprobs: Float[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
    level: str,
) -> Float[Tensor, "b u"]:
    """Return how far apart two policies are, judged by the sampled tokens; 0 for equal log-probs, else positive.

    With ``p`` the sampler's and ``q`` the trainer's probability of the token and ``g = log q - log p``:

    - ``binary_kl``: ``p log(p/q) + (1-p) log((1-p)/(1-q))``, the KL of "this token or another".
    - ``tv``: ``abs(p - q)``, the total variation of the same two outcomes.
    - ``k2``: ``g^2 / 2``, and ``k3``: ``exp(g) - 1 - g``: estimates of KL(sampler || trainer); g is clamped to
      [-20, 20].

    A level of ``sequence`` adds them up over the row, ``geometric`` takes their mean.

    Args:
        old_logprobs: and the next, 0 at padding.

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


def _of_units(of_tokens: Tensor, action_mask: Tensor, level: str) -> Tensor:
    """(B, A) -> (B, A) or (B, 1)"""
    if level == "token":
        return of_tokens
    total = of_tokens.sum(dim=1, keepdim=True)
    if level == "sequence":
        return total
    assert level == "geometric", level
    return total / action_mask.sum(dim=1, keepdim=True).clamp(min=1)


def _prob(logprobs: Tensor) -> Tensor:
    return logprobs.exp().clamp(MIN_PROB, 1 - MIN_PROB)


def _bounded(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

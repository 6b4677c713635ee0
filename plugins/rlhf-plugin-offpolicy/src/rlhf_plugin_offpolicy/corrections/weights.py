"""The correction: which tokens are kept, and with what weight."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .statistics import divergence, ratio


class ImportanceWeights(NamedTuple):
    """Per token; zero or False at padding."""

    weights: Float[Tensor, "b a"]
    """Also of tokens that are dropped."""
    keep: Bool[Tensor, "b a"]
    bounded: Bool[Tensor, "b a"]
    """The weight is a bound and not the ratio."""


def importance_weights(
    old_logprobs: Float[Tensor, "b a"],
    rollout_logprobs: Float[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
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

    With ``w`` the ratio of ``level`` and ``s`` what ``gate`` measures there, which is w itself for ``ratio``:

    - mode ``truncate``: weight ``min(w, high)``; mode ``clip``: weight ``clamp(w, low, high)``. All is kept.
    - mode ``mask``: kept where ``low <= s <= high``, with the weight ``min(ratio of level weight, max_weight)``.

    Equal log-probs give weight 1 and keep everything. No gradient flows through any of it. NaN at padding has no
    effect. Rows do not depend on each other.

    Args:
        old_logprobs: the trainer's, before its updates.
        level: ``token``, ``sequence`` or ``geometric``.
        high: of the ratio at least 1; of a divergence in nats, or in probability for ``tv``.
        low: of the ratio, at most 1; None: no lower bound.
        weight: of mode ``mask``: a level, or ``off`` for weight 1.
        max_weight: of mode ``mask``; None: no bound.

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
            judged = ratio(log_ratio, action_mask, level)  # (B, A) or (B, 1)
        else:
            judged = divergence(gate, old, rollout, action_mask, level)
        keep = judged <= high
        if low is not None:
            keep = keep & (judged >= low)
        raw = ratio(log_ratio, action_mask, weight) if weight != "off" else torch.ones_like(judged)
        bounded = raw.clamp(max=max_weight) if max_weight is not None else raw
    else:
        raw = ratio(log_ratio, action_mask, level)
        keep = torch.ones_like(action_mask)
        bounded = raw.clamp(min=low if mode == "clip" else None, max=high)
    return ImportanceWeights(
        weights=torch.where(action_mask, bounded, 0.0).to(old_logprobs.dtype),
        keep=action_mask & keep,
        bounded=action_mask & (bounded != raw),
    )

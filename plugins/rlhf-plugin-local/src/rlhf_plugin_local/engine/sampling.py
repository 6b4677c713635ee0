"""From logits to tokens: truncation, the draw, and the log-probability of what was drawn.

Axes: ``R`` rows (one sequence each), ``V`` vocabulary. Everything here is row by row: a row's result does not depend
on the other rows.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor


def truncate(
    logits: Float[Tensor, "r v"],
    top_k: Int64[Tensor, " r"],
    top_p: Float[Tensor, " r"],
    min_p: Float[Tensor, " r"],
) -> Float[Tensor, "r v"]:
    """Return the logits with -inf at the tokens that are not kept; the others unchanged.

    In this order, each on what the one before kept: the ``top_k`` most probable tokens; the smallest set of most
    probable tokens whose share of the rest is at least ``top_p``; tokens at least ``min_p`` times as probable as the
    most probable. The most probable token is always kept; of equally probable ones, those with lower ids.
    ``top_k=0``, ``top_p=1`` and ``min_p=0`` keep all.

    The order is that of Transformers; vLLM applies ``min_p`` first, so that a run with both min-p and top-p
    keeps slightly fewer tokens there.
    """
    V = logits.shape[-1]
    sorted_logits, order = logits.sort(dim=-1, descending=True, stable=True)  # (R, V)
    rank = torch.arange(V, device=logits.device)
    keep = rank < torch.where(top_k > 0, top_k, V)[:, None]  # (R, V)
    sorted_logits = sorted_logits.masked_fill(~keep, -torch.inf)
    probs = sorted_logits.double().softmax(dim=-1)  # (R, V)
    before = probs.cumsum(dim=-1) - probs  # (R, V) mass of the more probable tokens
    # Mass 1 of rounded numbers may sum to less or more than 1: top_p = 1 is therefore said, not computed.
    keep &= (before < top_p[:, None]) | (top_p >= 1.0)[:, None]
    keep &= probs >= min_p[:, None] * probs[:, :1]
    keep |= rank == 0
    # Back in the order of the vocabulary.
    kept = torch.empty_like(keep).scatter_(1, order, keep)  # (R, V)
    return logits.masked_fill(~kept, -torch.inf)


def draw(
    logits: Float[Tensor, "r v"], uniform: Float64[Tensor, " r"]
) -> tuple[Int64[Tensor, " r"], Float[Tensor, " r"]]:
    """Return the tokens at the given quantiles of softmax(logits), and their log-probabilities.

    The token is the first whose cumulative probability, summed in float64, exceeds ``u`` times the total; so one of
    probability 0 is never drawn, whatever ``u`` in [0, 1] is.
    """
    logprobs = logits.log_softmax(dim=-1)  # (R, V)
    cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)  # (R, V)
    total = cumulative[:, -1:]
    # u close to 1 may round u * total up to total, which nothing exceeds.
    below_total = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(uniform[:, None] * total, below_total)  # (R, 1)
    tokens = torch.searchsorted(cumulative, target, right=True)  # (R, 1)
    # Only logits that are not numbers can lead past the end; the caller sees their log-prob.
    tokens.clamp_(max=logits.shape[-1] - 1)
    return tokens.squeeze(1), logprobs.gather(1, tokens).squeeze(1)


def argmax(logits: Float[Tensor, "r v"]) -> tuple[Int64[Tensor, " r"], Float[Tensor, " r"]]:
    """Return the most probable tokens and their log-probabilities under softmax(logits)."""
    tokens = logits.argmax(dim=-1, keepdim=True)  # (R, 1)
    return tokens.squeeze(1), logits.log_softmax(dim=-1).gather(1, tokens).squeeze(1)

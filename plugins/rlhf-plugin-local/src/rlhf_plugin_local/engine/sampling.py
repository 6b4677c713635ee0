"""From logits to tokens: truncation, the draw, and the log-probability of what was drawn.

Axes: ``R`` rows (one sequence each), ``V`` vocabulary. Everything here is row by row: a row's result does not depend
on the other rows.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

BLOCK = 64
"""Tokens whose probabilities are summed before the draw decides in which of these blocks it falls."""


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
    probability 0 is never drawn, whatever ``u`` in [0, 1] is. The sums are taken in two levels, over blocks of the
    vocabulary and inside one block, because a running sum over all of it is the slowest operation of a small model.
    """
    V = logits.shape[-1]
    highest = logits.amax(dim=-1, keepdim=True)  # (R, 1)
    weights = (logits - highest).exp_()  # (R, V)
    if V % BLOCK:
        weights = torch.nn.functional.pad(weights, (0, -V % BLOCK))
    blocks = weights.unflatten(1, (-1, BLOCK))  # (R, V / BLOCK, BLOCK)
    cumulative = blocks.sum(dim=2).to(torch.float64).cumsum(dim=1)  # (R, V / BLOCK)
    total = cumulative[:, -1:]
    target = _below(uniform[:, None] * total, total)  # (R, 1)
    block = torch.searchsorted(cumulative, target, right=True)  # (R, 1)
    # Only logits that are not numbers can lead past the end; the caller sees their log-prob.
    block.clamp_(max=cumulative.shape[1] - 1)
    before = torch.where(block > 0, cumulative.gather(1, (block - 1).clamp(min=0)), 0.0)  # (R, 1)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0]  # (R, BLOCK)
    inside = inside.to(torch.float64).cumsum(dim=1)
    # The block's sum was rounded in another order, so what is left of the target may exceed it by a few bits.
    left = _below(target - before, inside[:, -1:])
    tokens = block * BLOCK + torch.searchsorted(inside, left, right=True)  # (R, 1)
    tokens.clamp_(max=V - 1)
    logprobs = logits.gather(1, tokens) - (highest + total.log().to(logits.dtype))  # (R, 1)
    return tokens.squeeze(1), logprobs.squeeze(1)


def _below(target: Tensor, total: Tensor) -> Tensor:
    """The target, but less than the total, which no running sum exceeds."""
    return torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))


def argmax(logits: Float[Tensor, "r v"]) -> tuple[Int64[Tensor, " r"], Float[Tensor, " r"]]:
    """Return the most probable tokens and their log-probabilities under softmax(logits)."""
    tokens = logits.argmax(dim=-1, keepdim=True)  # (R, 1)
    return tokens.squeeze(1), logits.log_softmax(dim=-1).gather(1, tokens).squeeze(1)

"""From logits to tokens: truncation, the draw, and the log-probability of what was drawn, for rows whose sampling may
ask for different things.

Axes: ``R`` rows (one sequence each), ``V`` vocabulary. Everything here is row by row: a row's result does not depend
on the other rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from rlhf_core.contracts import SamplingParams

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def uniforms(seeds: Int64[Tensor, " r"], index: Int64[Tensor, " r"]) -> Float64[Tensor, " r"]:
    """Return u in [0, 1) for each (seed, index): ``mix(mix(seed) + golden * (index + 1)) >> 11`` over 2**53.

    The seed is mixed before the index is added, so that seeds that differ by a multiple of the increment do not
    give shifted copies of one sequence. Integer arithmetic only: the same on every device, to the bit.

    Args:
        seeds: 64 bits, as signed integers (``signed_seed``).
        index: position of the token in its completion, from 0.

    Source: Steele, Lea and Flood 2014 (SplitMix64); the finaliser is Stafford's variant 13.
    """
    bits = _mix(_mix(seeds) + _GOLDEN * (index + 1))
    return _logical_shift(bits, 11).to(torch.float64) * 2.0**-53


def exponentials(
    seeds: Int64[Tensor, " r"], index: Int64[Tensor, " r"], count: int
) -> Float64[Tensor, "r n"]:
    """Return ``-log(u)`` at the places 0 to ``count - 1`` of each (seed, index): independent, exponential of mean 1.

    ``u = (k + 1/2) / 2**52``, with ``k`` the upper 52 bits of ``mix(mix(state) + golden * (place + 1))``; ``state`` is
    what ``uniforms`` mixes for its number. The half keeps u between 2**-53 and 1 - 2**-53, each of them exact in
    float64, so no number is 0 or infinite.

    Of n equal candidates the smallest number is about 1 / n. Neighbors among the values of u are 2**-52 apart, so
    among 1024 candidates the smallest two are equal, and the lower place wins without reason, about once in 4e12
    draws. With the 24 bits of float32 it would be once in 16 thousand.

    Source: the same as of ``uniforms``, with the state of a token as the seed of its places.
    """
    place = torch.arange(1, count + 1, device=seeds.device)  # (N,)
    state = _mix(seeds) + _GOLDEN * (index + 1)  # (R,)
    bits = _mix(_mix(state)[:, None] + _GOLDEN * place)  # (R, N)
    upper = _logical_shift(bits, 12).to(torch.float64)
    return upper.add_(0.5).mul_(2.0**-52).log_().neg_()


def signed_seed(seed: int) -> int:
    """Return the signed 64-bit integer with the same bits as the low 64 bits of ``seed``."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def _mix(bits: Tensor) -> Tensor:
    # In place behind the first operation: new memory costs more than the arithmetic.
    bits = (bits ^ _logical_shift(bits, 30)).mul_(_MIX_1)
    bits = bits.bitwise_xor_(_logical_shift(bits, 27)).mul_(_MIX_2)
    return bits.bitwise_xor_(_logical_shift(bits, 31))


def _logical_shift(bits: Tensor, by: int) -> Tensor:
    # torch shifts int64 arithmetically; the mask clears the copies of the sign bit.
    return (bits >> by).bitwise_and_((1 << (64 - by)) - 1)


BLOCK = 1024
"""Tokens of a block: a larger vocabulary is drawn from in two levels, block and token. Part of what a seed means."""
SUMMED = 64
"""Tokens whose probabilities are summed before an inverted draw decides in which of these parts it falls."""


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
    logits: Float[Tensor, "r v"], seeds: Int64[Tensor, " r"], index: Int64[Tensor, " r"]
) -> tuple[Int64[Tensor, " r"], Float[Tensor, " r"]]:
    """Return tokens of softmax(logits) that (seed, index) decide, and their log-probabilities.

    A vocabulary of at most ``BLOCK`` tokens is drawn from by ``invert``, at one uniform number, a larger one by
    ``race``. Both are exact. They differ in what becomes of a draw when each probability is rounded otherwise, by a
    relative eps. Inversion draws another token where its number lies between the old and the new value of one of V
    sums, which move like a walk: about ``eps * sqrt(V)`` of all draws, with eps = 1e-6 one in 2500 at 152 thousand
    tokens, and one in 30 thousand at 1024. A race changes where its two best are within eps of each other, about one
    draw in a million. Small models keep inversion, though a race would change less there too, and with it the tokens
    of their seeds.

    Args:
        logits: -inf where a token cannot be drawn.
        seeds: 64 bits, as signed integers (``counter.signed_seed``).
        index: position of the token in its completion, from 0.
    """
    V = logits.shape[-1]
    if V <= BLOCK:
        return invert(logits, uniforms(seeds, index))
    return race(logits, exponentials(seeds, index, -(-V // BLOCK) + BLOCK))


def race(
    logits: Float[Tensor, "r v"], numbers: Float64[Tensor, "r n"]
) -> tuple[Int64[Tensor, " r"], Float[Tensor, " r"]]:
    """Return the tokens that win races of exponential numbers, and their log-probabilities under softmax(logits).

    First block by block, then within the block that won, the winner is the first ``argmax_i w_i / E_i``, where w is
    the mass exp(logit - highest) of a token, or the sum of a block's; this is Gumbel-max, ``argmax_i log(w_i) +
    G_i`` with ``G = -log(E)``. A block wins with the probability of its tokens together, so the token is exact. What
    has no mass never wins: a number is at most 37 and at least 1e-16, hence the best ratio at least 1 / 37.

    Args:
        numbers: exponential, of mean 1: at place b that of block b, then at the place of each token of a block.

    Source: Gumbel 1954; Maddison, Tarlow and Minka 2014, arXiv:1411.0030 (Gumbel-max in levels).
    """
    V = logits.shape[-1]
    highest = logits.amax(dim=-1, keepdim=True)  # (R, 1)
    weights = (logits - highest).exp_()  # (R, V)
    masses = _masses(weights).to(torch.float64)  # (R, C)
    C = masses.shape[1]
    block = (masses / numbers[:, :C]).argmax(dim=1, keepdim=True)  # (R, 1)
    columns = block * BLOCK + torch.arange(BLOCK, device=logits.device)  # (R, BLOCK)
    inside = weights.gather(1, columns.clamp(max=V - 1)).masked_fill(columns >= V, 0.0)
    place = (inside / numbers[:, C:]).argmax(dim=1, keepdim=True)  # (R, 1)
    # Only logits that are not numbers can lead past the end; the caller sees their log-prob.
    tokens = (block * BLOCK + place).clamp(max=V - 1)
    total = masses.sum(dim=1, keepdim=True)  # (R, 1)
    logprobs = logits.gather(1, tokens) - (highest + total.log().to(logits.dtype))
    return tokens.squeeze(1), logprobs.squeeze(1)


def _masses(weights: Tensor) -> Tensor:
    """(R, C) sums of the blocks. The last one may be short; it is summed apart, for padding would copy all weights."""
    blocks, rest = divmod(weights.shape[1], BLOCK)
    whole = weights[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK)).sum(dim=2)
    return torch.cat([whole, weights[:, -rest:].sum(dim=1, keepdim=True)], 1) if rest else whole


def invert(
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
    if V % SUMMED:
        weights = torch.nn.functional.pad(weights, (0, -V % SUMMED))
    blocks = weights.unflatten(1, (-1, SUMMED))  # (R, V / SUMMED, SUMMED)
    cumulative = blocks.sum(dim=2).to(torch.float64).cumsum(dim=1)  # (R, V / SUMMED)
    total = cumulative[:, -1:]
    target = _below(uniform[:, None] * total, total)  # (R, 1)
    block = torch.searchsorted(cumulative, target, right=True)  # (R, 1)
    # Only logits that are not numbers can lead past the end; the caller sees their log-prob.
    block.clamp_(max=cumulative.shape[1] - 1)
    before = torch.where(block > 0, cumulative.gather(1, (block - 1).clamp(min=0)), 0.0)  # (R, 1)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, SUMMED))[:, 0]  # (R, SUMMED)
    inside = inside.to(torch.float64).cumsum(dim=1)
    # The block's sum was rounded in another order, so what is left of the target may exceed it by a few bits.
    left = _below(target - before, inside[:, -1:])
    tokens = block * SUMMED + torch.searchsorted(inside, left, right=True)  # (R, 1)
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


class DrawKind(NamedTuple):
    """The operations that a draw needs beyond a sample from softmax(logits); those that no row needs are left out."""

    some_greedy: bool = False
    """Some rows take the most probable token."""
    all_greedy: bool = False
    tempered: bool = False
    """Some rows divide their logits."""
    truncated: bool = False
    """Some rows keep only probable tokens."""
    delayed: bool = False
    """Some rows may not end before a certain number of tokens."""

    @classmethod
    def of(cls, kinds: Collection[SamplingParams]) -> DrawKind:
        """Return the operations that rows of these parameters need."""
        greedy = [kind.temperature == 0 for kind in kinds]
        return cls(
            some_greedy=any(greedy),
            all_greedy=all(greedy),
            tempered=any(kind.temperature not in (0, 1) for kind in kinds),
            truncated=any(kind.truncates for kind in kinds),
            delayed=any(kind.min_new_tokens for kind in kinds),
        )


def draw_rows(
    logits: Tensor, rows: Mapping[str, Tensor], kind: DrawKind, is_eos: Tensor
) -> tuple[Tensor, Tensor]:
    """Return tokens (R,) and their log-probabilities (R,) under what they were drawn from.

    Args:
        logits: (R, V) float32.
        rows: (R,) each: index, min_new, seed, temperature (0 is greedy), top_k, top_p, min_p.
        is_eos: (V,) true for end-of-sequence tokens.
    """
    index = rows["index"]
    if kind.delayed:
        early = (index < rows["min_new"])[:, None]  # (R, 1)
        logits = logits.masked_fill(early & is_eos, -torch.inf)
    if kind.all_greedy:
        return argmax(logits)
    is_greedy = rows["temperature"] == 0
    scaled = logits
    if kind.tempered:
        scaled = logits / torch.where(is_greedy, 1.0, rows["temperature"])[:, None]
    if kind.truncated:
        scaled = truncate(scaled, rows["top_k"], rows["top_p"], rows["min_p"])
    tokens, logprobs = draw(scaled, rows["seed"], index)
    if kind.some_greedy:
        best, best_logprobs = argmax(logits)
        tokens = torch.where(is_greedy, best, tokens)
        logprobs = torch.where(is_greedy, best_logprobs, logprobs)
    return tokens, logprobs

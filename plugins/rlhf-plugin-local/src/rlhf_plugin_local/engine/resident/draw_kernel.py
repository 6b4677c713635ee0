"""The draw of ``sampling.draw`` as two kernels that read the products of the output head once.

The first sums the weights exp(s - max) of each block of the vocabulary. The second finds the block that wins the race,
reads it once more, and finds the token that wins there, by the random numbers of ``counter``; from a vocabulary of one
block it takes a quantile. It computes in float64. Truncation and greedy rows are not its business: they go the plain
way.

Axes: ``R`` rows, ``V`` vocabulary, ``C`` blocks of it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rlhf_torch.models import modeling
from rlhf_torch.models.modeling import LogitForm

from ..next_token.sampling import BLOCK

BLOCKS = 4
"""Blocks that a program sums. A program of one block alone would have too little to read at a time."""
NO_PRODUCT: tl.constexpr = tl.constexpr(modeling.NO_PRODUCT)
"""Bound that no product is below; what is, has no probability."""


@triton.jit
def _scaled(raw, scale, softcap, temperature, capped: tl.constexpr):
    """Return what ``LogitForm.apply`` does, divided by the row's temperature."""
    logits = raw.to(tl.float32) * scale
    if capped:
        # tanh(x) = 1 - 2 / (exp(2 x) + 1)
        bent = softcap * (1.0 - 2.0 / (tl.exp(2.0 * (logits / softcap)) + 1.0))
        logits = tl.where(raw.to(tl.float32) < NO_PRODUCT, logits, bent)
    return logits / temperature


@triton.jit
def _column_logits(
    raw_ptr,
    temperature_ptr,
    early_ptr,
    is_eos_ptr,
    row,
    columns,
    scale,
    softcap,
    V,
    capped: tl.constexpr,
    delayed: tl.constexpr,
):
    """Return the logits of some columns of a row, -inf for those that it cannot sample."""
    inside = columns < V
    raw = tl.load(raw_ptr + row * V + columns, mask=inside, other=0.0)
    logits = _scaled(raw, scale, softcap, tl.load(temperature_ptr + row), capped)
    if delayed:
        is_early = tl.load(early_ptr + row) != 0
        ends = tl.load(is_eos_ptr + columns, mask=inside & is_early, other=0) != 0
        inside = inside & ~ends
    return tl.where(inside, logits, -float("inf"))


@triton.jit
def _blocks_kernel(
    raw_ptr,
    temperature_ptr,
    early_ptr,
    is_eos_ptr,
    maxima_ptr,
    sums_ptr,
    scale,
    softcap,
    V,
    C,
    capped: tl.constexpr,
    delayed: tl.constexpr,
    block: tl.constexpr,
    blocks: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    numbers = tl.program_id(1) * blocks + tl.arange(0, blocks)
    columns = numbers[:, None] * block + tl.arange(0, block)[None, :]
    logits = _column_logits(
        raw_ptr,
        temperature_ptr,
        early_ptr,
        is_eos_ptr,
        row,
        columns,
        scale,
        softcap,
        V,
        capped,
        delayed,
    )
    top = tl.max(logits, axis=1)  # (blocks,)
    # Of a block without a token that can be drawn all weights are exp(-inf) = 0, not exp(-inf - -inf).
    base = tl.where(top == -float("inf"), 0.0, top)
    there = numbers < C
    tl.store(maxima_ptr + row * C + numbers, top, mask=there)
    summed = tl.sum(tl.exp(logits - base[:, None]), axis=1)
    tl.store(sums_ptr + row * C + numbers, summed, mask=there)


@triton.jit
def _mix(bits):
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return bits ^ (bits >> 31)


@triton.jit
def _state(seed, index):
    """Return the 64 bits of a token, which ``counter`` mixes for its uniform number."""
    counted = (index + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    return _mix(seed.to(tl.uint64, bitcast=True)) + counted


@triton.jit
def _uniform(state):
    """Return the number in [0, 1) of ``counter.uniforms``."""
    return (_mix(state) >> 11).to(tl.float64) * (1.0 / 9007199254740992.0)  # 2**-53


@triton.jit
def _exponentials(state, places):
    """Return the numbers of ``counter.exponentials`` at these places."""
    counted = (places + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    upper = (_mix(_mix(state) + counted) >> 12).to(tl.float64)
    return -tl.log((upper + 0.5) * (1.0 / 4503599627370496.0))  # 2**-52


@triton.jit
def _winner(weights, numbers, places, last):
    """Return the first place of the largest ratio, or the last place where that is not a number."""
    ratios = weights / numbers
    best = tl.max(ratios, axis=0)
    return tl.min(tl.where(ratios == best, places, last), axis=0)


@triton.jit
def _quantile(weights, target, places):
    """Return the first place whose running sum exceeds the target."""
    running = tl.cumsum(weights, axis=0)
    place = tl.sum((running <= target).to(tl.int32), axis=0)
    # The total was rounded in another order: the target may exceed this sum by a few bits.
    return tl.minimum(place, tl.max(tl.where(weights > 0.0, places, 0), axis=0))


@triton.jit
def _pick_kernel(
    raw_ptr,
    temperature_ptr,
    early_ptr,
    is_eos_ptr,
    maxima_ptr,
    sums_ptr,
    seed_ptr,
    index_ptr,
    tokens_ptr,
    logprobs_ptr,
    scale,
    softcap,
    V,
    C,
    capped: tl.constexpr,
    delayed: tl.constexpr,
    block: tl.constexpr,
    C_block: tl.constexpr,
    raced: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, C_block)
    maxima = tl.load(maxima_ptr + row * C + c, mask=c < C, other=-float("inf"))
    sums = tl.load(sums_ptr + row * C + c, mask=c < C, other=0.0)
    top = tl.max(maxima, axis=0)
    masses = sums.to(tl.float64) * tl.exp(maxima - top).to(tl.float64)
    total = tl.sum(masses, axis=0)
    state = _state(tl.load(seed_ptr + row), tl.load(index_ptr + row))
    number = 0
    if raced:
        number = _winner(masses, _exponentials(state, c), c, C - 1)

    places = tl.arange(0, block)
    logits = _column_logits(
        raw_ptr,
        temperature_ptr,
        early_ptr,
        is_eos_ptr,
        row,
        number * block + places,
        scale,
        softcap,
        V,
        capped,
        delayed,
    )
    weights = tl.exp(logits - top).to(tl.float64)
    if raced:
        place = _winner(weights, _exponentials(state, C + places), places, block - 1)
    else:
        place = _quantile(weights, _uniform(state) * total, places)
    # Behind the vocabulary the ratios are 0, and so are they the largest of a block that has no number else.
    place = tl.minimum(place, V - 1 - number * block)
    logit = tl.sum(tl.where(places == place, logits, 0.0), axis=0)
    tl.store(tokens_ptr + row, (number * block + place).to(tl.int64))
    tl.store(logprobs_ptr + row, logit - (top + tl.log(total.to(tl.float32))))


def draw(
    raw: Tensor,
    form: LogitForm,
    temperature: Tensor,
    seed: Tensor,
    index: Tensor,
    *,
    early: Tensor | None = None,
    is_eos: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the tokens (R,) that ``sampling.draw`` takes from ``form.apply(raw) / temperature`` at (seed, index),
    and their log-probabilities (R,) in float32. All arguments are contiguous.

    Args:
        raw: (R, V) products of the output head.
        temperature: (R,) positive.
        seed: (R,) int64.
        index: (R,) int64 of the token in its completion, from 0.
        early: (R,) true for rows that may not end yet; None: all may.
        is_eos: (V,) true for end-of-sequence tokens; read where some rows may not end.
    """
    R, V = raw.shape
    C = triton.cdiv(V, BLOCK)
    maxima = torch.empty(R, C, dtype=torch.float32, device=raw.device)
    sums = torch.empty_like(maxima)
    tokens = torch.empty(R, dtype=torch.int64, device=raw.device)
    logprobs = torch.empty(R, dtype=torch.float32, device=raw.device)
    delayed = early is not None
    masks = (early, is_eos) if delayed else (temperature, temperature)  # not read
    summed = (raw, temperature, *masks, maxima, sums)
    shape = (form.scale, form.softcap or 1.0, V, C)
    kind = (form.softcap is not None, delayed, BLOCK)
    blocks = min(BLOCKS, triton.next_power_of_2(C))
    _blocks_kernel[(R, triton.cdiv(C, blocks))](*summed, *shape, *kind, blocks)
    drawn = (seed, index, tokens, logprobs)
    _pick_kernel[(R,)](
        *summed, *drawn, *shape, *kind, triton.next_power_of_2(C), C > 1, num_warps=8
    )
    return tokens, logprobs

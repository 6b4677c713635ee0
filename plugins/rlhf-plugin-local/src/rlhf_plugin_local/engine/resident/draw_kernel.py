"""The draw of ``sampling.draw`` as two kernels that read the products of the output head once.

The first sums the weights exp(s - max) over chunks of the vocabulary. The second works out each row's uniform number
(``counter.uniforms``), finds the chunk in which the number falls, and in that chunk the token; it sums in float64.
Truncation and greedy rows are not its business: they go the plain way.

Axes: ``R`` rows, ``V`` vocabulary, ``C`` chunks of it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rlhf_torch.models.modeling import LogitForm

CHUNK = 4096
"""Tokens whose weights a program sums."""


@triton.jit
def _scaled(raw, scale, softcap, temperature, capped: tl.constexpr):
    """Return what ``LogitForm.apply`` does, divided by the row's temperature."""
    logits = raw.to(tl.float32) * scale
    if capped:
        # tanh(x) = 1 - 2 / (exp(2 x) + 1)
        logits = softcap * (1.0 - 2.0 / (tl.exp(2.0 * (logits / softcap)) + 1.0))
    return logits / temperature


@triton.jit
def _chunk_logits(
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
def _chunks_kernel(
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
    chunk: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1)
    columns = number * chunk + tl.arange(0, chunk)
    logits = _chunk_logits(
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
    top = tl.max(logits, axis=0)
    tl.store(maxima_ptr + row * C + number, top)
    tl.store(sums_ptr + row * C + number, tl.sum(tl.exp(logits - top), axis=0))


@triton.jit
def _mix(bits):
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return bits ^ (bits >> 31)


@triton.jit
def _uniform(seed, index):
    """Return the number in [0, 1) of ``counter.uniforms``."""
    counted = (index + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    bits = _mix(_mix(seed.to(tl.uint64, bitcast=True)) + counted)
    return (bits >> 11).to(tl.float64) * (1.0 / 9007199254740992.0)  # 2**-53


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
    chunk: tl.constexpr,
    C_block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, C_block)
    maxima = tl.load(maxima_ptr + row * C + c, mask=c < C, other=-float("inf"))
    sums = tl.load(sums_ptr + row * C + c, mask=c < C, other=0.0)
    top = tl.max(maxima, axis=0)
    summed = sums.to(tl.float64) * tl.exp(maxima - top).to(tl.float64)
    cumulative = tl.cumsum(summed, axis=0)
    # Not the last of these: a maximum passes over what is not a number, and the log-prob has to show it.
    total = tl.sum(summed, axis=0)
    target = _uniform(tl.load(seed_ptr + row), tl.load(index_ptr + row)) * total
    before_it = (cumulative <= target) & (c < C)
    # Rounding, or logits that are not numbers, may lead past the end.
    number = tl.minimum(tl.sum(before_it.to(tl.int32), axis=0), C - 1)
    left = target - tl.max(tl.where(c < number, cumulative, 0.0), axis=0)

    columns = number * chunk + tl.arange(0, chunk)
    logits = _chunk_logits(
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
    weights = tl.exp(logits - top).to(tl.float64)
    running = tl.cumsum(weights, axis=0)
    places = tl.arange(0, chunk)
    place = tl.sum((running <= left).to(tl.int32), axis=0)
    # The chunk's sum was rounded in another order: what is left may exceed it by a few bits.
    place = tl.minimum(place, tl.max(tl.where(weights > 0.0, places, 0), axis=0))
    logit = tl.sum(tl.where(places == place, logits, 0.0), axis=0)
    tl.store(tokens_ptr + row, (number * chunk + place).to(tl.int64))
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
    """Return the tokens (R,) that ``sampling.draw`` takes from ``form.apply(raw) / temperature`` at the uniform numbers
    of (seed, index), and their log-probabilities (R,) in float32. All arguments are contiguous.

    Args:
        raw: (R, V) products of the output head.
        temperature: (R,) positive.
        seed: (R,) int64.
        index: (R,) int64 of the token in its completion, from 0.
        early: (R,) true for rows that may not end yet; None: all may.
        is_eos: (V,) true for end-of-sequence tokens; read where some rows may not end.
    """
    R, V = raw.shape
    C = triton.cdiv(V, CHUNK)
    maxima = torch.empty(R, C, dtype=torch.float32, device=raw.device)
    sums = torch.empty_like(maxima)
    tokens = torch.empty(R, dtype=torch.int64, device=raw.device)
    logprobs = torch.empty(R, dtype=torch.float32, device=raw.device)
    delayed = early is not None
    masks = (early, is_eos) if delayed else (temperature, temperature)  # not read
    summed = (raw, temperature, *masks, maxima, sums)
    shape = (form.scale, form.softcap or 1.0, V, C)
    kind = (form.softcap is not None, delayed, CHUNK)
    _chunks_kernel[(R, C)](*summed, *shape, *kind)
    drawn = (seed, index, tokens, logprobs)
    _pick_kernel[(R,)](*summed, *drawn, *shape, *kind, triton.next_power_of_2(C), num_warps=8)
    return tokens, logprobs

"""Decode attention over pages as a kernel: each key and value of a row is read once for all its query heads.

A program computes one key head of one row over one part of the row's positions, in pages, with a running maximum and
sum (Milakov and Gimelshein 2018, arXiv:1805.02867); a second kernel joins the parts by their maxima and sums
(flash-decoding: Dao et al. 2023). Rows that share pages of a prompt are neighbors, so their programs run at about the
same time and find these pages in the GPU's cache: memory hands out a shared prompt about once.

torch's own kernels were not taken: ``varlen_attn`` reads no pages in the versions that this package allows, and flex
attention has no grouped decode over pages that can be captured while lengths grow on the device.

Axes: ``R`` rows, ``G`` query heads per key head, ``P`` parts, ``K`` head dimension.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .pages import PAGE

MAX_PARTS = 16
"""Parts of a row at most."""
PROGRAMS_PER_PROCESSOR = 4
"""Programs of the first kernel for each multiprocessor that the number of parts aims at."""
FEWEST_IN_A_PRODUCT = 16
"""Rows, columns and terms that a product of matrices has at least on a GPU; smaller heads and groups are padded."""

LOG2E = tl.constexpr(1.4426950408889634)
"""exp(x) = exp2(x log2(e)), and exp2 is what the GPU computes."""


@triton.jit
def _capped(scores, softcap, capped: tl.constexpr):
    """Return ``softcap * tanh(scores / softcap)`` where there is a cap."""
    if capped:
        # tanh(x) = 1 - 2 / (exp(2 x) + 1)
        scores = softcap * (1.0 - 2.0 / (tl.exp(2.0 * (scores / softcap)) + 1.0))
    return scores


@triton.jit
def _share(first, position, part, parts: tl.constexpr, page_size: tl.constexpr):
    """Return the first of a part's pages and the one behind its last: those of the positions from ``first`` to before
    ``position`` are dealt out to the parts."""
    begin = first // page_size
    pages = tl.cdiv(position, page_size) - begin
    share = tl.cdiv(pages, parts)
    low = begin + part * share
    return low, tl.minimum(low + share, begin + pages)


@triton.jit
def _joined(top, total, output, scores, values, precision: tl.constexpr):
    """Return running maximum (G,), sum (G,) and output (G, K) with some more scores (G, T) and values (T, K)."""
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    # At a window's edge a page may have no position that is seen; then nothing counts yet.
    floor = tl.where(new_top == -float("inf"), 0.0, new_top)
    shrink = tl.where(new_top == -float("inf"), 0.0, tl.exp2(top - floor))
    weights = tl.exp2(scores - floor[:, None])
    total = total * shrink + tl.sum(weights, axis=1)
    output = output * shrink[:, None]
    output += tl.dot(weights.to(values.dtype), values, input_precision=precision)
    return new_top, total, output


@triton.jit
def _part_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    keys_ptr,
    values_ptr,
    table_ptr,
    positions_ptr,
    output_ptr,
    maxima_ptr,
    sums_ptr,
    table_stride,
    query_row,
    query_head,
    key_row,
    key_head,
    value_row,
    value_head,
    scaling,
    softcap,
    window,
    H_kv: tl.constexpr,
    G: tl.constexpr,
    G_block: tl.constexpr,
    K: tl.constexpr,
    K_block: tl.constexpr,
    page_size: tl.constexpr,
    parts: tl.constexpr,
    capped: tl.constexpr,
    windowed: tl.constexpr,
    exact: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    precision: tl.constexpr = "ieee" if exact else "tf32"
    position = tl.load(positions_ptr + row).to(tl.int32)
    first = 0
    if windowed:
        first = tl.maximum(position - window + 1, 0)
    low, high = _share(first, position, part, parts, page_size)
    g, k, t = tl.arange(0, G_block), tl.arange(0, K_block), tl.arange(0, page_size)
    has_g, has_k = g < G, k < K
    inside = has_g[:, None] & has_k[None, :]
    asked = row * query_row + (head * G + g)[:, None] * query_head + k[None, :]
    query = tl.load(query_ptr + asked, mask=inside, other=0.0)  # (G, K)
    top = tl.full([G_block], -float("inf"), tl.float32)
    total = tl.zeros([G_block], tl.float32)
    output = tl.zeros([G_block, K_block], tl.float32)
    if part == 0:
        # The row's own key and value: stored for later steps, and counted from the registers.
        key = tl.load(key_ptr + row * key_row + head * key_head + k, mask=has_k, other=0.0)
        value = tl.load(value_ptr + row * value_row + head * value_head + k, mask=has_k, other=0.0)
        own = tl.load(table_ptr + row * table_stride + position // page_size).to(tl.int64)
        place = ((own * H_kv + head) * page_size + position % page_size) * K
        tl.store(keys_ptr + place + k, key, mask=has_k)
        tl.store(values_ptr + place + k, value, mask=has_k)
        score = tl.sum(query.to(tl.float32) * key.to(tl.float32)[None, :], axis=1) * scaling
        top = _capped(score, softcap, capped) * LOG2E
        total += 1.0
        output += value.to(tl.float32)[None, :]
    for number in range(low, high):
        page = tl.load(table_ptr + row * table_stride + number).to(tl.int64)
        places = ((page * H_kv + head) * page_size + t[:, None]) * K + k[None, :]
        keys = tl.load(keys_ptr + places, mask=has_k[None, :], other=0.0)  # (PAGE, K)
        values = tl.load(values_ptr + places, mask=has_k[None, :], other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision=precision) * scaling  # (G, PAGE)
        at = number * page_size + t
        seen = ((at >= first) & (at < position))[None, :]
        scores = tl.where(seen, _capped(scores, softcap, capped) * LOG2E, -float("inf"))
        top, total, output = _joined(top, total, output, scores, values, precision)
    if parts == 1:
        output = output / total[:, None]
    slot = ((row * H_kv + head) * G + g) * parts + part
    tl.store(output_ptr + slot[:, None] * K + k[None, :], output, mask=inside)
    if parts > 1:
        tl.store(maxima_ptr + slot, top, mask=has_g)
        tl.store(sums_ptr + slot, total, mask=has_g)


@triton.jit
def _join_kernel(
    parts_ptr,
    maxima_ptr,
    sums_ptr,
    output_ptr,
    K: tl.constexpr,
    K_block: tl.constexpr,
    parts: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, parts)
    k = tl.arange(0, K_block)
    maxima = tl.load(maxima_ptr + place * parts + p)
    sums = tl.load(sums_ptr + place * parts + p)
    # The first part has the row's own position, so the largest maximum is a number.
    weights = tl.exp2(maxima - tl.max(maxima, axis=0))
    found = tl.load(
        parts_ptr + (place * parts + p)[:, None] * K + k[None, :],
        mask=(k < K)[None, :],
        other=0.0,
    )
    output = tl.sum(found * weights[:, None], axis=0) / tl.sum(sums * weights, axis=0)
    tl.store(output_ptr + place * K + k, output, mask=k < K)


def decode_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    positions: Tensor,
    scaling: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Store each row's key and value, and return the attention of its query (R, H, K), summed in float32.

    Arguments and result are those of ``plain_decode_attention``.

    Heads of any dimension work; the kernel is fastest at powers of 2. Numbers of float32 are multiplied as such where
    torch's own products are (``torch.backends.cuda.matmul.allow_tf32`` off).
    """
    R, H, K = query.shape
    H_kv = key.shape[1]
    query, key, value = (
        part if part.stride(-1) == 1 else part.contiguous() for part in (query, key, value)
    )
    parts = _number_of_parts(R * H_kv, _num_processors(query.device))
    output = torch.empty(R, H, K, dtype=query.dtype, device=query.device)
    if parts == 1:
        found = maxima = sums = output
    else:
        found = torch.empty(R, H, parts, K, dtype=torch.float32, device=query.device)
        maxima = torch.empty(R, H, parts, dtype=torch.float32, device=query.device)
        sums = torch.empty_like(maxima)
    K_block = block_of(K)
    _part_kernel[(R, H_kv, parts)](
        query,
        key,
        value,
        keys,
        values,
        table,
        positions,
        found,
        maxima,
        sums,
        table.stride(0),
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        scaling,
        softcap or 1.0,
        window or 0,
        H_kv=H_kv,
        G=H // H_kv,
        G_block=block_of(H // H_kv),
        K=K,
        K_block=K_block,
        page_size=PAGE,
        parts=parts,
        capped=softcap is not None,
        windowed=window is not None,
        exact=query.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32,
        num_warps=4,
        num_stages=3 if query.dtype != torch.float32 else 2,
    )
    if parts > 1:
        _join_kernel[(R * H,)](
            found, maxima, sums, output, K=K, K_block=K_block, parts=parts, num_warps=1
        )
    return output


def block_of(size: int) -> int:
    """Return how many rows or columns of a product a program computes for ``size`` of them."""
    return max(FEWEST_IN_A_PRODUCT, triton.next_power_of_2(size))


def _number_of_parts(programs: int, processors: int) -> int:
    """Return into how many parts each row is cut: a power of 2, so many that all processors have work."""
    wanted = -(-processors * PROGRAMS_PER_PROCESSOR // programs)
    return min(MAX_PARTS, triton.next_power_of_2(wanted))


@cache
def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)

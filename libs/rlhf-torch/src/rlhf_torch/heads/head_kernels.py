"""The functions of ``fused_head`` as kernels for a GPU, each of which reads the products of the head once.

A compiler makes three passes of ``head_scores``, and finds the place of each number by a division of 64 bits, since a
chunk has more numbers than 32 bits count. Here a program works on one row: maximum, sum and expectation follow in one
pass (Milakov and Gimelshein 2018, arXiv:1805.02867), and the gradient replaces the products in their own memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..models import modeling
from ..models.modeling import LogitForm

SCORES_BLOCK = 8192
"""Numbers that a program of the scores holds at a time."""
GRAD_BLOCK = 4096
"""Numbers that a program of the gradient holds at a time."""
NO_PRODUCT: tl.constexpr = tl.constexpr(modeling.NO_PRODUCT)
"""Bound that no product is below; what is, has no probability."""


@triton.jit
def _logits(raw, scale, softcap, inverse_temperature, capped: tl.constexpr):
    """Return what ``LogitForm.apply`` does."""
    logits = raw.to(tl.float32) * scale
    if capped:
        # tanh(x) = 1 - 2 / (exp(2 x) + 1)
        bent = softcap * (1.0 - 2.0 / (tl.exp(2.0 * (logits / softcap)) + 1.0))
        logits = tl.where(raw.to(tl.float32) < NO_PRODUCT, logits, bent)
    return logits * inverse_temperature


@triton.jit
def _scores_kernel(
    raw_ptr,
    ids_ptr,
    logprobs_ptr,
    entropies_ptr,
    logsumexps_ptr,
    vocabulary: tl.constexpr,
    num_ids,
    scale,
    softcap,
    inverse_temperature,
    capped: tl.constexpr,
    block: tl.constexpr,
    ids_block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = raw_ptr + row * vocabulary
    columns = tl.arange(0, block)
    top = -float("inf")
    total = 0.0  # of exp(s - top)
    weighted = 0.0  # of exp(s - top) (s - top)
    for start in range(0, vocabulary, block):
        inside = start + columns < vocabulary
        raw = tl.load(row_ptr + start + columns, mask=inside, other=0.0)
        logits = tl.where(
            inside, _logits(raw, scale, softcap, inverse_temperature, capped), -float("inf")
        )
        higher = tl.maximum(top, tl.max(logits, 0))
        moved = tl.where(top == -float("inf"), 0.0, top - higher)
        shrunk = tl.exp(moved)
        behind = tl.where(inside, logits - higher, 0.0)
        powers = tl.where(inside, tl.exp(behind), 0.0)
        weighted = shrunk * (weighted + moved * total) + tl.sum(powers * behind, 0)
        total = shrunk * total + tl.sum(powers, 0)
        top = higher
    log_total = tl.log(total)
    tl.store(logsumexps_ptr + row, top + log_total)
    tl.store(entropies_ptr + row, log_total - weighted / total)
    places = tl.arange(0, ids_block)
    wanted = places < num_ids
    ids = tl.load(ids_ptr + row * num_ids + places, mask=wanted, other=0)
    # An id outside of the vocabulary would read another row, or memory of somebody else; it has no log-prob.
    known = (ids >= 0) & (ids < vocabulary)
    raw = tl.load(row_ptr + ids, mask=wanted & known, other=0.0)
    found = _logits(raw, scale, softcap, inverse_temperature, capped) - (top + log_total)
    found = tl.where(known, found, float("nan"))
    tl.store(logprobs_ptr + row * num_ids + places, found, mask=wanted)


@triton.jit
def _grad_kernel(
    raw_ptr,
    action_ptr,
    logsumexps_ptr,
    grad_logprob_ptr,
    grad_entropy_ptr,
    entropies_ptr,
    vocabulary: tl.constexpr,
    scale,
    softcap,
    inverse_temperature,
    capped: tl.constexpr,
    has_entropy: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    inside = columns < vocabulary
    place = raw_ptr + row * vocabulary + columns
    raw = tl.load(place, mask=inside, other=0.0)
    logits = _logits(raw, scale, softcap, inverse_temperature, capped)
    logprobs = logits - tl.load(logsumexps_ptr + row)
    grad_logprob = tl.load(grad_logprob_ptr + row)
    if has_entropy:
        grad_entropy = tl.load(grad_entropy_ptr + row)
        factor = grad_logprob + grad_entropy * (logprobs + tl.load(entropies_ptr + row))
    else:
        factor = grad_logprob
    grad = -tl.exp(logprobs) * factor
    grad += tl.where(columns == tl.load(action_ptr + row), grad_logprob, 0.0)
    grad *= scale * inverse_temperature
    if capped:
        bent = logits / (softcap * inverse_temperature)
        grad *= tl.where(raw.to(tl.float32) < NO_PRODUCT, 0.0, 1.0 - bent * bent)
    tl.store(place, grad.to(raw_ptr.dtype.element_ty), mask=inside)


def head_scores(raw: Tensor, ids: Tensor, form: LogitForm) -> tuple[Tensor, Tensor, Tensor]:
    """Return what ``fused_head.head_scores`` does; an id outside of the vocabulary has the log-prob NaN.

    Args:
        raw: (m, V) products of the output head, contiguous.
    """
    rows, vocabulary = raw.shape
    num_ids = ids.shape[1]
    logprobs = torch.empty(rows, num_ids, dtype=torch.float32, device=raw.device)
    entropies, logsumexps = logprobs.new_empty(2, rows)
    if rows:
        _scores_kernel[(rows,)](
            raw,
            ids.contiguous(),
            logprobs,
            entropies,
            logsumexps,
            vocabulary,
            num_ids,
            *_numbers(form),
            capped=form.softcap is not None,
            block=SCORES_BLOCK,
            ids_block=triton.next_power_of_2(num_ids),
            num_warps=8,
        )
    return logprobs, entropies, logsumexps


def head_grad_(
    raw: Tensor,
    action: Tensor,
    form: LogitForm,
    logsumexp: Tensor,
    grad_logprob: Tensor,
    grad_entropy: Tensor | None,
    entropies: Tensor,
) -> Tensor:
    """Return what ``fused_head.head_grad`` does, in the memory of ``raw``, whose products are lost.

    Args:
        raw: (m, V) contiguous.
        grad_entropy: None for zeros.
    """
    rows, vocabulary = raw.shape
    if rows:
        _grad_kernel[(rows, triton.cdiv(vocabulary, GRAD_BLOCK))](
            raw,
            action.contiguous(),
            logsumexp.contiguous(),
            grad_logprob.contiguous(),
            (entropies if grad_entropy is None else grad_entropy).contiguous(),
            entropies.contiguous(),
            vocabulary,
            *_numbers(form),
            capped=form.softcap is not None,
            has_entropy=grad_entropy is not None,
            block=GRAD_BLOCK,
            num_warps=8,
        )
    return raw


def _numbers(form: LogitForm) -> tuple[float, float, float]:
    softcap = 1.0 if form.softcap is None else form.softcap
    return float(form.scale), float(softcap), 1.0 / float(form.temperature)

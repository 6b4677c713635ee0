"""Attention with all scores in memory: what the fused kernels lack, or do more slowly.

Axes beyond the project's table: ``H_kv`` heads of keys and values, ``D_head`` size of a head, ``Q`` queries, which are
fewer than the ``T`` keys where earlier queries were computed elsewhere.

A *sink* is one more score of each head that every query has beside those of its keys, with nothing behind it: it takes
a share of the weights away. No kernel of torch gives its gradient.
"""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

MAX_SCORES = 2**26
"""Number of scores that are in memory at once where heads have sinks or scores are capped: 256 MiB of float32."""
KEPT_SCORES = 2**20
"""Number of scores of a layer up to which a forward pass keeps them, which is faster: at most 11 MiB with all that
is kept."""


def materialized_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float,
    softcap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return ``softmax(cap(q k^T scaling)) v`` with all scores in memory; the softmax is in float32 or float64.

    With sinks s the weights of a query's scores are ``exp(score) / (exp(s) + sum of exp(score))``.

    Args:
        query: (b, H, Q, D_head)
        key, value: (b, H_kv, T, D_head)
        mask: (Q, T) or (b, 1, Q, T); True where the query may see the key.
        sinks: (H,) score of each head's sink; None: there are none.
    """
    num_kv_heads = key.shape[1]
    grouped = query.unflatten(1, (num_kv_heads, -1))  # (b, H_kv, H / H_kv, Q, D_head)
    scores = (grouped * scaling) @ key.unsqueeze(2).transpose(-1, -2)  # (b, H_kv, H / H_kv, Q, T)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask.unsqueeze(-3), float("-inf"))
    # float64 keeps its digits: what compares two ways in it sees the ways, not a processor's exponential function.
    exact = torch.promote_types(scores.dtype, torch.float32)
    if sinks is None:
        weights = scores.softmax(dim=-1, dtype=exact).to(value.dtype)
    else:
        scores = scores.to(exact)
        own = sinks.to(exact).view(num_kv_heads, -1, 1, 1)
        total = torch.logaddexp(scores.logsumexp(dim=-1, keepdim=True), own)
        weights = (scores - total).exp().to(value.dtype)
    attended: Tensor = (weights @ value.unsqueeze(2)).flatten(1, 2)  # (b, H, Q, D_head)
    return attended


def attention_in_parts(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float,
    softcap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return ``materialized_attention`` for one part of the queries after the other, so that ``MAX_SCORES`` are in
    memory; the backward pass computes the scores of each part again, but for ``KEPT_SCORES`` of all queries."""
    scores_of_query = query.shape[0] * query.shape[1] * key.shape[2]
    size = max(1, MAX_SCORES // scores_of_query)
    attend = partial(materialized_attention, scaling=scaling, softcap=softcap)
    keeps_all = scores_of_query * query.shape[2] <= min(KEPT_SCORES, MAX_SCORES)
    if keeps_all or (query.shape[2] <= size and not torch.is_grad_enabled()):
        return attend(query, key, value, mask, sinks=sinks)
    parts = []
    for part, seen in zip(query.split(size, dim=2), mask.split(size, dim=-2), strict=True):
        again: Tensor = checkpoint(
            attend,
            part,
            key,
            value,
            seen,
            sinks=sinks,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        parts.append(again)
    return torch.cat(parts, dim=2)


def tail_mask(
    queries: int,
    length: int,
    window: int | None,
    device: torch.device,
    blocks: Int[Tensor, " Q"] | None = None,
) -> Bool[Tensor, "Q T"]:
    """Return (Q, T): True where the query may see the key, for the last ``queries`` of ``length`` tokens.

    Args:
        window: number of positions that a query sees, its own among them; None: all.
        blocks: number of the block of each query's token, -1 outside of blocks; tokens of one block also see what is
            behind them. None: there are none.
    """
    steps = torch.arange(length, device=device)
    behind = steps[-queries:, None] - steps  # (Q, T)
    seen = behind >= 0
    if blocks is not None:
        seen[:, -queries:] |= (blocks[:, None] == blocks) & (blocks >= 0)
    return seen & (behind < (window or length))

"""Attention with all scores in memory: what the fused kernels lack, or do more slowly.

Axes beyond the project's table: ``H_kv`` heads of keys and values, ``D_head`` size of a head, ``Q`` queries, which are
fewer than the ``T`` keys where earlier queries were computed elsewhere.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

MAX_MATERIALIZED = 512
"""Longest sequence, in tokens, for which the CPU path keeps a whole score matrix; as many scores for fewer queries."""


def materialized_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, softcap: float | None
) -> Tensor:
    """Return ``softmax(cap(q k^T scaling)) v`` with all scores in memory; the softmax is in float32 or float64.

    Args:
        query: (b, H, Q, D_head)
        key, value: (b, H_kv, T, D_head)
        mask: (Q, T) or (b, 1, Q, T); True where the query may see the key.
    """
    num_kv_heads = key.shape[1]
    grouped = query.unflatten(1, (num_kv_heads, -1))  # (b, H_kv, H / H_kv, Q, D_head)
    scores = (grouped * scaling) @ key.unsqueeze(2).transpose(-1, -2)  # (b, H_kv, H / H_kv, Q, T)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask.unsqueeze(-3), float("-inf"))
    # float64 keeps its digits: what compares two ways in it sees the ways, not a processor's exponential function.
    exact = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.softmax(dim=-1, dtype=exact).to(value.dtype)
    attended: Tensor = (weights @ value.unsqueeze(2)).flatten(1, 2)  # (b, H, Q, D_head)
    return attended


def tail_mask(
    queries: int, length: int, window: int | None, device: torch.device
) -> Bool[Tensor, "Q T"]:
    """Return (Q, T): True where the query may see the key, for the last ``queries`` of ``length`` tokens.

    Args:
        window: number of positions that a query sees, its own among them; None: all.
    """
    steps = torch.arange(length, device=device)
    behind = steps[-queries:, None] - steps  # (Q, T)
    return (behind >= 0) & (behind < (window or length))


def prefers_materialized(query: Tensor, longest: int) -> bool:
    """Return whether keeping the scores of queries (b, H, Q, D_head) with ``longest`` keys each is the faster way."""
    # The fused CPU kernel's bfloat16 backward takes 4 times as long as plain matmuls (64 x 96 tokens, Zen 5).
    return (
        query.device.type == "cpu"
        and query.dtype == torch.bfloat16
        and query.requires_grad
        and query.shape[2] * longest <= MAX_MATERIALIZED**2
    )

"""Truncated distributions: top-k, top-p and min-p, each on what the one before kept, as engines apply them."""

from __future__ import annotations

from rlhf_core.lazy import torch


def truncated(
    logprobs: torch.Tensor,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    soft: bool = False,
) -> torch.Tensor:
    """Return (N, V) log-probs renormalized within the tokens that are kept: log p - log of the mass that is kept.

    ``top_k=0``, ``top_p=1`` and ``min_p=0`` return the argument.

    Args:
        soft: tokens that are not kept have the same difference, in place of -inf: what they would have in the place
            of one that is as likely.
    """
    kept = torch.ones_like(logprobs, dtype=torch.bool)
    if 0 < top_k < logprobs.shape[-1]:
        kept &= logprobs >= logprobs.topk(top_k, dim=-1).values[:, -1:]
    if top_p < 1.0:
        probs = logprobs.masked_fill(~kept, -torch.inf).softmax(dim=-1)
        ordered, places = probs.sort(dim=-1, descending=True)
        inside = ordered.cumsum(dim=-1) - ordered < top_p
        kept &= torch.zeros_like(kept).scatter(-1, places, inside)
    if min_p > 0.0:
        kept &= logprobs >= logprobs.amax(dim=-1, keepdim=True) + torch.tensor(min_p).double().log()
    if bool(kept.all()):
        return logprobs
    mass = logprobs.masked_fill(~kept, -torch.inf).logsumexp(dim=-1, keepdim=True)
    rest = logprobs - mass
    return rest if soft else rest.masked_fill(~kept, -torch.inf)

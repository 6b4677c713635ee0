"""Log-probs, entropies and their gradients at the output head, in as few passes over the logits as a GPU needs.

They are plain tensor functions, compiled on first use. Eager operations would keep each intermediate of a chunk in
memory, (m, V) in float32, and read and write it a dozen times: for a vocabulary of 152k tokens that takes longer
than the head's own matmuls at small widths. On a CPU ``action_head`` has an eager path of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.modeling import LogitForm


def head_scores(raw: Tensor, ids: Tensor, form: LogitForm) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probs (m, k) of ``ids`` (m, k), entropies (m,) and log-sum-exps (m,) in float32.

    Args:
        raw: (m, V) products of the output head.
    """
    logits = form.apply(raw)
    top = logits.amax(-1, keepdim=True)
    logsumexp = top + (logits - top).exp().sum(-1, keepdim=True).log()  # (m, 1)
    logprobs = logits - logsumexp
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    return form.apply(raw.gather(1, ids)) - logsumexp, entropies, logsumexp[:, 0]


def head_sum_pi_squared(raw: Tensor, form: LogitForm, logsumexp: Tensor) -> Tensor:
    """Return ``sum_v p_v^2`` (m,), given the log-sum-exps (m,) of ``head_scores``."""
    return (2 * (form.apply(raw) - logsumexp[:, None])).exp().sum(-1)


def head_grad(
    raw: Tensor,
    action: Tensor,
    form: LogitForm,
    logsumexp: Tensor,
    grad_logprob: Tensor,
    grad_entropy: Tensor,
    entropies: Tensor,
) -> Tensor:
    """Return dL/draw (m, V), in the dtype of ``raw``, for gradients of the action's log-prob and of the entropy.

    With s = logits: d log p(a) / ds = onehot(a) - p and dH / ds = -p (log p + H). All but ``raw`` are (m,).
    """
    logprobs = form.apply(raw) - logsumexp[:, None]
    factor = grad_logprob[:, None] + grad_entropy[:, None] * (logprobs + entropies[:, None])
    grad = -logprobs.exp() * factor
    columns = torch.arange(raw.shape[1], device=raw.device)
    grad = grad + torch.where(columns == action[:, None], grad_logprob[:, None], 0.0)
    return (grad * form.slope(raw)).to(raw.dtype)

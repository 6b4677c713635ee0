"""Numbers of whole sequences, and their credit to the loss of each token."""

from __future__ import annotations

from ..lazy import Bool, Float, torch


def row_mean(
    values: Float[torch.Tensor, "b a"], action_mask: Bool[torch.Tensor, "b a"]
) -> Float[torch.Tensor, "b 1"]:
    """Return the mean over each row's action tokens; 0 for a row without action tokens."""
    total = torch.where(action_mask, values, 0.0).sum(dim=1, keepdim=True)
    return total / action_mask.sum(dim=1, keepdim=True).clamp(min=1)


def credited_to_own_token(
    sequence_ratio: Float[torch.Tensor, "b 1"], log_ratio: Float[torch.Tensor, "b a"]
) -> Float[torch.Tensor, "b a"]:
    """Return the sequence's ratio at each token, with the gradient of that token's log-ratio alone.

    ``s_t = stop(s) * exp(l_t - stop(l_t))``: the value is s, the gradient with respect to ``l_t`` is s, and that with
    respect to other tokens' log-ratios is 0.

    With ``s = exp(mean(l))`` itself, the gradient at token t is ``(1/n) sum_j dL_j`` over the n tokens of the row; with
    ``s_t`` it is ``dL_t``. Equal advantages make both the same; others stay with their own tokens.

    Source: GSPO-token, Zheng et al. 2025, arXiv:2507.18071, section 4.3.
    """
    return sequence_ratio.detach() * (log_ratio - log_ratio.detach()).exp()

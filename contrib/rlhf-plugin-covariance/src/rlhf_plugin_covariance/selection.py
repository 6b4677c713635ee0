"""Which tokens of a step are treated apart: those whose log-prob and advantage are high together.

Raising the probability of a token that is already likely, because its advantage is high, is what lowers the entropy
of a softmax policy; the covariance measures it token by token.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.math import whiten


def token_covariances(
    advantages: Float[Tensor, "b a"],
    logprobs: Float[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
) -> Float[Tensor, "b a"]:
    """Return each token's term of the covariance of log-probs and advantages; 0 at padding.

    ``c_t = (A_t - mean(A)) * (logp_t - mean(logp))``, both means over all action tokens. The mean of ``c`` is the
    covariance. Equal advantages, or equal log-probs, give exactly 0. Adding a constant to either changes nothing.

    Args:
        advantages: in units of the advantage.
        logprobs: nats. Of the policy before the step's updates, to select once per step; of the current policy, to
            compare with code that selects within the loss.

    Source: Cui et al. 2025, arXiv:2505.22617.
    """
    centered_advantages = whiten(advantages, action_mask, divide_by_std=False)
    centered_logprobs = whiten(logprobs, action_mask, divide_by_std=False)
    return centered_advantages * centered_logprobs


def num_selected(fraction: float, action_mask: Bool[Tensor, "b a"]) -> int:
    """Return ``max(1, floor(fraction * tokens))``, and 0 without tokens.

    The minimum of one token is that of the authors' code; in a step of a thousand tokens it is five times the default
    fraction.
    """
    num_tokens = int(action_mask.sum())
    return max(1, int(fraction * num_tokens)) if num_tokens else 0


def drawn_within(
    covariances: Float[Tensor, "b a"],
    eligible: Bool[Tensor, "b a"],
    *,
    low: float,
    high: float,
    count: int,
    generator: torch.Generator,
) -> Bool[Tensor, "b a"]:
    """Return True at ``count`` tokens drawn uniformly among the eligible with ``low < covariance < high``.

    With fewer of them than ``count``, all are taken. The draw depends on the generator and on the order of the
    candidates, not on the width of the padding.

    Args:
        eligible: a subset of the action tokens.
        generator: on the CPU, so that every device draws the same.
    """
    candidates = (eligible & (covariances > low) & (covariances < high)).flatten().nonzero()[:, 0]
    order = torch.randperm(len(candidates), generator=generator)[:count]
    chosen = torch.zeros(eligible.numel(), dtype=torch.bool, device=eligible.device)
    chosen[candidates[order.to(candidates.device)]] = True
    return chosen.reshape(eligible.shape)


def largest_positive(
    covariances: Float[Tensor, "b a"], eligible: Bool[Tensor, "b a"], *, count: int
) -> Bool[Tensor, "b a"]:
    """Return True at the ``count`` eligible tokens with the largest covariance, as far as it is positive.

    Of equal ones the first is taken, in the order of rows and tokens.
    """
    ranked = torch.where(eligible, covariances, -torch.inf).flatten()
    largest = ranked.sort(descending=True, stable=True).indices[:count]
    chosen = torch.zeros_like(ranked, dtype=torch.bool)
    chosen[largest] = True
    return chosen.reshape(eligible.shape) & eligible & (covariances > 0)

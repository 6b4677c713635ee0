"""REINFORCE without a baseline of its own; the batch's mean is one, once the batch is whitened."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.math import reward_to_go, whiten

from .config import Whitening


def reinforce_advantages(
    token_rewards: Float[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
    *,
    gamma: float,
    whitening: Whitening,
) -> Float[Tensor, "b a"]:
    """Return the discounted reward-to-go of each action token, whitened over the batch; 0 at padding.

    ``G_t = sum over s >= t of gamma^(s - t) * R_s``, then ``A = (G - mean(G)) / std(G)`` over all action tokens. With
    whitening ``none`` it is plain REINFORCE.

    Args:
        token_rewards: KL penalty included, so that each token pays for its own divergence and that of later ones.
        gamma: discount per action token, in [0, 1].
        whitening: ``mean`` removes the mean, ``full`` also divides by the standard deviation.

    Source: Hu et al. 2025 (REINFORCE++), arXiv:2501.03262.
    """
    returns = reward_to_go(token_rewards, action_mask, gamma)
    if whitening == "none":
        return returns
    return whiten(returns, action_mask, divide_by_std=whitening == "full")

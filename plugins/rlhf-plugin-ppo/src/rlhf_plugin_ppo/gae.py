"""Generalized advantage estimation over action tokens.

Environment text between turns has no columns here, so it takes no time: the value after a turn's last token is that
of the next turn's first, and rewards of several turns are simply rewards at several tokens.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_core.math import reward_to_go


def gae_advantages(
    token_rewards: Float[Tensor, "b a"],
    values: Float[Tensor, "b a"],
    action_mask: Bool[Tensor, "b a"],
    *,
    gamma: float,
    lambda_: float,
    final_values: Float[Tensor, " b"] | None = None,
) -> Float[Tensor, "b a"]:
    """Return A_t, the sum of TD errors to come, discounted by ``gamma * lambda_``; 0 at padding.

    ``delta_t = R_t + gamma * V_{t+1} - V_t`` and ``A_t = delta_t + gamma * lambda_ * A_{t+1}``, with A = 0 after the
    last action token and V what ``final_values`` says, 0 without them.

    ``lambda_=1`` gives the discounted return minus V, ``lambda_=0`` the TD error. ``A + V`` is the critic's target.
    Final values of 0 are no final values.

    Args:
        values: of the state before each action token.
        gamma: discount per action token, in [0, 1].
        lambda_: in [0, 1]; bias of the critic at 0, variance of the returns at 1.
        final_values: of the state after the last action token: 0 where the episode ended there, what was still to be
            earned where it was cut off.

    Source: Schulman et al. 2016, arXiv:1506.02438, equation 16; on the value after a cut: Pardo et al. 2018,
    arXiv:1712.00378.
    """
    values = torch.where(action_mask, values, 0.0)  # (B, A)
    next_values = torch.nn.functional.pad(values[:, 1:], (0, 1))  # (B, A)
    if final_values is not None:
        goes_on = torch.nn.functional.pad(action_mask[:, 1:], (0, 1))  # (B, A)
        next_values = torch.where(goes_on, next_values, final_values[:, None])
    td_errors = token_rewards + gamma * next_values - values  # (B, A)
    return reward_to_go(td_errors, action_mask, gamma * lambda_)

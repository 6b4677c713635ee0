"""Returns: discounted sums of the rewards of this and all later action tokens."""

from __future__ import annotations

from ..lazy import Bool, Float, torch


def reward_to_go(
    token_rewards: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    discount: float = 1.0,
) -> Float[torch.Tensor, "b a"]:
    """Return the discounted sum of this and all later rewards of the row, 0 at padding.

    ``G_t = sum over s >= t of discount^(s - t) * R_s``, which solves ``G_t = R_t + discount * G_{t+1}``. ``discount=0``
    gives the rewards themselves. The discount is per action token: environment tokens take no time.

    The same recurrence turns TD errors into generalized advantage estimates.

    Args:
        token_rewards: R, right-padded; at padding anything, also nan.
        discount: discount factor per action token, in [0, 1].
    """
    sums = torch.where(action_mask, token_rewards, 0.0)  # (B, A)
    # Doubling: after a round, each position holds the sum of the next 2 * reach terms. log2(A) vector operations in
    # place of A dependent ones, and the summation error grows with log2(A) too.
    reach = 1
    while reach < sums.shape[1]:
        later = torch.nn.functional.pad(sums[:, reach:], (0, reach))  # (B, A)
        sums = sums + discount**reach * later
        reach *= 2
    return torch.where(action_mask, sums, 0.0)

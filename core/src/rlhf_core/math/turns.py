"""Rewards by turn: a turn is credited with the rewards from its start on, and not with earlier ones."""

from __future__ import annotations

from ..contracts.advantage import RewardBatch
from ..lazy import Bool, Float, Int, torch
from .returns import reward_to_go


def rewards_by_turn(batch: RewardBatch) -> Float[torch.Tensor, "b k"]:
    """Return ``remaining_rewards`` of a batch: each row's rewards from the start of turn k on."""
    return remaining_rewards(
        batch.rewards, batch.token_rewards, batch.action_mask, batch.turn, batch.kl_penalty
    )


def advantages_at_tokens(
    by_turn: Float[torch.Tensor, "b k"], batch: RewardBatch
) -> Float[torch.Tensor, "b a"]:
    """Return ``token_advantages`` of a batch: each turn's advantage at its tokens, plus the KL penalty to come."""
    return token_advantages(by_turn, batch.action_mask, batch.turn, batch.kl_penalty)


def remaining_rewards(
    rewards: Float[torch.Tensor, " b"],
    token_rewards: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    turn: Int[torch.Tensor, "b a"],
    kl_penalty: Float[torch.Tensor, "b a"] | None = None,
) -> Float[torch.Tensor, "b k"]:
    """Return each row's rewards from the start of turn k on: its whole reward minus those of the turns before k.

    A row that ended before turn k counts with its last turn, on which the episode's reward is placed too. So with one
    reward at the end every entry of a row is that reward, to the bit, whatever the number of its turns; and column 0 is
    always ``rewards``. ``K`` is the largest number of turns.

    Args:
        rewards: whole reward of each row, without the KL penalty.
        token_rewards: the same rewards by token; only tokens before a row's last turn are read.
        turn: index of each token's turn in its row, from 0, not decreasing.
        kl_penalty: the part of ``token_rewards`` that is no reward and is left out.
    """
    turn = torch.where(action_mask, turn, 0)  # (B, A)
    last_turn = turn.amax(dim=1, keepdim=True)  # (B, 1)
    earned = token_rewards if kl_penalty is None else token_rewards - kl_penalty
    earned = torch.where(action_mask & (turn < last_turn), earned, 0.0)  # (B, A)
    by_turn = earned.new_zeros(len(rewards), int(last_turn.max()) + 1)
    by_turn = by_turn.scatter_add(1, turn, earned)  # (B, K)
    return rewards[:, None] - (by_turn.cumsum(dim=1) - by_turn)


def token_advantages(
    by_turn: Float[torch.Tensor, "b k"],
    action_mask: Bool[torch.Tensor, "b a"],
    turn: Int[torch.Tensor, "b a"],
    kl_penalty: Float[torch.Tensor, "b a"] | None = None,
) -> Float[torch.Tensor, "b a"]:
    """Return each turn's advantage at all of its action tokens, plus the KL penalty still to come; 0 at padding.

    ``A_t = by_turn[turn of t] + sum over s >= t of kl_penalty_s``. A turn's reward is credited to the whole turn, a
    token's penalty to that token and those before it.
    """
    advantages = by_turn.gather(1, torch.where(action_mask, turn, 0))  # (B, A)
    if kl_penalty is not None:
        advantages = advantages + reward_to_go(kl_penalty, action_mask)
    return torch.where(action_mask, advantages, 0.0)

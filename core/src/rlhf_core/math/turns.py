"""Rewards by turn: a turn is credited with the rewards from its start on, and not with earlier ones.

Turns are those of the episode, however many rows it was cut into: a turn on another row earns as one on the same does.
"""

from __future__ import annotations

from ..batch.token_columns import offsets_of
from ..batch.trajectory_columns import TrajectoryColumns
from ..contracts.advantage import RewardBatch
from ..lazy import Bool, Float, Int, NDArray, np, torch
from .returns import reward_to_go


def turn_credit(batch: TrajectoryColumns) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the order of the batch's turns in their episodes, and what its rows earned elsewhere than by their turns.

    The first are (U,) indices of the turns, from 0, in the order in which the policy answered: where each episode has
    one row, that is the turn's index in the row. The second are (sum of A,) amounts at actions. The last action of a
    turn has what turns of the episode's other rows earned between it and the next turn of its row, exactly 0 where
    each episode has one row. The last action of a row has, besides, ``reward_at_end``, which has the turn rewards of
    all other rows, without what these earned before the row's last turn.
    """
    row = np.repeat(np.arange(len(batch)), batch.num_turns)  # (U,)
    episode = batch.episode[row]  # (U,)
    # Stable: turns of equal places keep the order of their rows.
    order = np.lexsort((batch.turn_places, episode))
    starts = np.flatnonzero(np.diff(episode[order], prepend=-1))  # where each episode begins
    sizes = np.diff(starts, append=len(order))
    number, earned_before = np.empty_like(order), np.empty(len(order), dtype=np.float64)
    number[order] = np.arange(len(order)) - np.repeat(starts, sizes)
    earned = batch.turn_rewards[order].astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(earned)[:-1]])
    earned_before[order] = sums - np.repeat(sums[starts], sizes)

    first, last = offsets_of(batch.num_turns)[:-1], offsets_of(batch.num_turns)[1:] - 1
    gap = np.zeros(len(order), dtype=np.float64)
    gap[:-1] = earned_before[1:] - earned_before[:-1] - batch.turn_rewards[:-1]
    gap[last] = 0.0
    # Differences of sums are rounded: where no other row was asked in between, nothing was earned.
    follows = np.diff(number, append=0) == 1
    gap[follows] = 0.0
    inner = np.bincount(row, weights=gap, minlength=len(batch)).astype(np.float64)  # (B,)
    before = inner + np.where(number[first] > 0, earned_before[first], 0.0)  # (B,)
    elsewhere = np.zeros(int(batch.num_actions.sum()), dtype=np.float32)
    elsewhere[np.cumsum(batch.turn_actions) - 1] = gap
    elsewhere[batch.action_offsets[1:] - 1] += (batch.reward_at_end - before).astype(np.float32)
    return number, elsewhere


def rewards_by_turn(batch: RewardBatch) -> Float[torch.Tensor, "b k"]:
    """Return the rewards, without KL penalty, that each row's episode earned from the start of turn k on.

    Column 0 is ``batch.rewards``; see ``remaining_rewards``.
    """
    return remaining_rewards(
        batch.rewards,
        batch.token_rewards,
        batch.action_mask,
        batch.turn,
        batch.kl_penalty,
        batch.elsewhere,
        None if batch.elsewhere is None else batch.episode,
    )


def num_turns(batch: RewardBatch) -> Int[torch.Tensor, " b"]:
    """Return the number of turns of each row's episode; of the row alone where credit goes row by row."""
    owner = torch.arange(len(batch.turn)) if batch.elsewhere is None else batch.episode
    return _last_turn(batch.turn, batch.action_mask, owner)[owner] + 1


def advantages_at_tokens(
    by_turn: Float[torch.Tensor, "b k"], batch: RewardBatch
) -> Float[torch.Tensor, "b a"]:
    """Return each turn's advantage at its tokens, plus the KL penalty that is still to come there; 0 at padding."""
    return token_advantages(by_turn, batch.action_mask, batch.turn, batch.kl_penalty)


def remaining_rewards(
    rewards: Float[torch.Tensor, " b"],
    token_rewards: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    turn: Int[torch.Tensor, "b a"],
    kl_penalty: Float[torch.Tensor, "b a"] | None = None,
    elsewhere: Float[torch.Tensor, "b a"] | None = None,
    episode: Int[torch.Tensor, " b"] | None = None,
) -> Float[torch.Tensor, "b k"]:
    """Return an episode's rewards from the start of turn k on: its whole reward minus those of the turns before k.

    An episode that ended before turn k counts with its last turn, on which the episode's reward is placed too. So with
    one reward at the end every entry of a row is that reward, to the bit, whatever the number of turns; and column 0
    is always ``rewards``. ``K`` is the largest number of turns. Cutting an episode into rows changes nothing.

    Args:
        rewards: whole reward of each row's episode, without the KL penalty.
        token_rewards: the same rewards by token; only tokens before an episode's last turn are read.
        turn: index of each token's turn in its episode, from 0, not decreasing in a row.
        kl_penalty: the part of ``token_rewards`` that is no reward and is left out.
        elsewhere: the part of ``token_rewards`` that the row's turns did not earn, which is left out too.
        episode: dense index of each row's episode. None: each row is one.
    """
    owner = torch.arange(len(rewards), device=turn.device) if episode is None else episode
    last_turn = _last_turn(turn, action_mask, owner)  # (E,)
    turn = torch.where(action_mask, turn, 0)  # (B, A)
    earned = token_rewards if kl_penalty is None else token_rewards - kl_penalty
    earned = earned if elsewhere is None else earned - elsewhere
    earned = torch.where(action_mask & (turn < last_turn[owner][:, None]), earned, 0.0)  # (B, A)
    by_turn = earned.new_zeros(len(rewards), int(last_turn.max()) + 1)
    by_turn = by_turn.scatter_add(1, turn, earned)  # (B, K) the row's own turns
    by_turn = torch.zeros_like(by_turn).index_add(0, owner, by_turn)[owner]  # (B, K) the episode's
    return rewards[:, None] - (by_turn.cumsum(dim=1) - by_turn)


def _last_turn(turn: torch.Tensor, action_mask: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
    """Return the last turn of each owner (E,), an episode or a row; as many as there are rows, 0 where none is."""
    of_row = torch.where(action_mask, turn, 0).amax(dim=1)  # (B,)
    return torch.zeros_like(of_row).scatter_reduce(0, owner, of_row, "amax")


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

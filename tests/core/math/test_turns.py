"""Rewards by turn."""

import pytest
import torch

from rlhf_core.math import remaining_rewards, token_advantages

NAN = float("nan")

# Row 0: two turns of 2 and 1 tokens that earned 0.5 and 2. Row 1: one turn of 2 tokens that earned 1.
TOKEN_REWARDS = torch.tensor([[0.0, 0.5, 2.0], [0.0, 1.0, NAN]])
MASK = torch.tensor([[True, True, True], [True, True, False]])
TURN = torch.tensor([[0, 0, 1], [0, 0, 0]])
REWARDS = torch.tensor([2.5, 1.0])


def test_remaining_rewards_by_hand():
    # Row 0 still earned 2.5 from its first turn on and 2 from its second; row 1 had only one turn, which earned 1.
    expected = torch.tensor([[2.5, 2.0], [1.0, 1.0]])

    torch.testing.assert_close(remaining_rewards(REWARDS, TOKEN_REWARDS, MASK, TURN), expected)


def test_the_kl_penalty_is_no_reward():
    penalty = torch.tensor([[-0.25, -0.5, -0.125], [-1.0, -2.0, NAN]])

    torch.testing.assert_close(
        remaining_rewards(REWARDS, TOKEN_REWARDS + penalty, MASK, TURN, penalty),
        remaining_rewards(REWARDS, TOKEN_REWARDS, MASK, TURN),
    )


def test_one_reward_at_the_end_stands_at_every_turn_to_the_bit():
    turn = torch.tensor([[0, 1, 2], [0, 1, 1]])
    rewards = torch.tensor([0.1, 0.7])
    penalty = torch.full((2, 3), -0.01)
    token_rewards = penalty.clone()
    token_rewards[0, 2] += 0.1
    token_rewards[1, 1] += 0.7

    actual = remaining_rewards(rewards, token_rewards, MASK, turn, penalty)

    # Turns before the last held penalties alone, which cancel exactly.
    assert torch.equal(actual, rewards[:, None].expand(2, 3))


def test_it_equals_a_loop_over_turns():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([9, 6, 1, 8])
    mask = torch.arange(9) < lengths[:, None]
    turn = torch.randint(0, 2, (4, 9), generator=generator)
    turn[:, 0] = 0
    turn = turn.cumsum(dim=1)
    token_rewards = torch.where(
        mask, torch.randn(4, 9, dtype=torch.float64, generator=generator), NAN
    )
    rewards = torch.where(mask, token_rewards, 0.0).sum(dim=1)

    actual = remaining_rewards(rewards, token_rewards, mask, turn)

    num_turns = [int(turn[row, length - 1]) + 1 for row, length in enumerate(lengths.tolist())]
    assert actual.shape == (4, max(num_turns))
    for row, length in enumerate(lengths.tolist()):
        for k in range(max(num_turns)):
            first = min(k, num_turns[row] - 1)
            earned = sum(
                token_rewards[row, t].item() for t in range(length) if turn[row, t] >= first
            )
            assert actual[row, k].item() == pytest.approx(earned, abs=1e-12)


def test_token_advantages_by_hand():
    by_turn = torch.tensor([[1.0, -2.0], [3.0, 9.0]])
    penalty = torch.tensor([[-0.1, -0.2, -0.3], [-0.5, -0.25, NAN]])

    without = torch.tensor([[1.0, 1.0, -2.0], [3.0, 3.0, 0.0]])
    torch.testing.assert_close(token_advantages(by_turn, MASK, TURN), without)
    # To go: 0.6, 0.5, 0.3 and 0.75, 0.25
    with_penalty = torch.tensor([[0.4, 0.5, -2.3], [2.25, 2.75, 0.0]])
    torch.testing.assert_close(token_advantages(by_turn, MASK, TURN, penalty), with_penalty)


def test_more_padding_changes_nothing():
    def wide(tensor: torch.Tensor, value: float = 0.0) -> torch.Tensor:
        return torch.nn.functional.pad(tensor, (0, 2), value=value)

    torch.testing.assert_close(
        remaining_rewards(REWARDS, wide(TOKEN_REWARDS, NAN), wide(MASK), wide(TURN)),
        remaining_rewards(REWARDS, TOKEN_REWARDS, MASK, TURN),
    )

"""Discounted sums of what is still to come."""

import pytest
import torch

from rlhf_core.math import reward_to_go

NAN = float("nan")


def test_returns_by_hand():
    rewards = torch.tensor([[0.0, 1.0], [1.0, 4.0]])
    mask = torch.tensor([[True, True], [True, True]])

    # 0 + 0.9 * 1, 1; 1 + 0.9 * 4, 4
    torch.testing.assert_close(
        reward_to_go(rewards, mask, 0.9), torch.tensor([[0.9, 1.0], [4.6, 4.0]])
    )


def test_without_discount_it_is_the_sum_of_the_rest():
    rewards, mask = torch.tensor([[1.0, 2.0, 3.0, NAN]]), torch.tensor([[True, True, True, False]])

    torch.testing.assert_close(reward_to_go(rewards, mask), torch.tensor([[6.0, 5.0, 3.0, 0.0]]))


def test_a_discount_of_zero_gives_the_rewards():
    rewards, mask = torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 3, dtype=torch.bool)

    torch.testing.assert_close(reward_to_go(rewards, mask, 0.0), rewards)


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 9, 64, 100])
@pytest.mark.parametrize("discount", [1.0, 0.97, 0.5, 0.0])
def test_it_equals_the_recurrence(width, discount):
    generator = torch.Generator().manual_seed(width)
    rewards = torch.randn(3, width, dtype=torch.float64, generator=generator)
    lengths = torch.tensor([width, (width + 1) // 2, 1])
    mask = torch.arange(width) < lengths[:, None]

    expected = torch.zeros_like(rewards)
    for row in range(3):
        running = 0.0
        for token in reversed(range(int(lengths[row]))):
            running = rewards[row, token].item() + discount * running
            expected[row, token] = running

    torch.testing.assert_close(
        reward_to_go(rewards, mask, discount), expected, atol=1e-12, rtol=1e-12
    )


def test_one_reward_at_the_end_arrives_to_the_bit():
    rewards = torch.zeros(1, 1000)
    rewards[0, -1] = 0.1

    assert (reward_to_go(rewards, torch.ones(1, 1000, dtype=torch.bool)) == rewards[0, -1]).all()


def test_what_stands_at_padding_does_not_matter():
    mask = torch.tensor([[True, True, False, False]])
    clean = torch.tensor([[1.0, 2.0, 0.0, 0.0]])
    dirty = torch.tensor([[1.0, 2.0, NAN, 5.0]])

    assert torch.equal(reward_to_go(dirty, mask, 0.9), reward_to_go(clean, mask, 0.9))


def test_arguments_are_left_as_they_are():
    rewards = torch.tensor([[1.0, 2.0, 3.0]])

    reward_to_go(rewards, torch.ones(1, 3, dtype=torch.bool), 0.5)

    assert rewards.tolist() == [[1.0, 2.0, 3.0]]

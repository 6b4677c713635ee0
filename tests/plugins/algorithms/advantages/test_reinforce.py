"""``reinforce``: discounted returns, whitened over the batch."""

import pytest
import torch

from rlhf_plugin_algorithms.advantages.reinforce import Reinforce, ReinforceConfig


def rows_of(advantages, mask):
    """The advantages of each row's action tokens."""
    return [row[kept].tolist() for row, kept in zip(advantages, mask, strict=True)]


def assert_rows(result, batch, expected, tolerance=1e-6):
    actual = rows_of(result.advantages, batch.action_mask)
    assert [len(row) for row in actual] == [len(row) for row in expected]
    for row, numbers in zip(actual, expected, strict=True):
        assert row == pytest.approx(numbers, abs=tolerance)


def test_the_discount_is_per_action_token(make_reward_batch):
    batch = make_reward_batch([[(2, 1.0)]], group=[0])

    result = Reinforce(ReinforceConfig(gamma=0.9, whiten="none"))(batch)

    assert_rows(result, batch, [[0.9, 1.0]])


def test_the_kl_penalty_is_in_the_return_of_reinforce(make_reward_batch):
    batch = make_reward_batch([[(3, 1.0)]], group=[0], kl_penalty=-0.1)

    result = Reinforce(ReinforceConfig(gamma=0.5, whiten="none"))(batch)

    # 0.9; -0.1 + 0.45 = 0.35; -0.1 + 0.175 = 0.075
    assert_rows(result, batch, [[0.075, 0.35, 0.9]])


def test_reinforce_plus_plus_whitens_returns_with_the_token_level_penalty_inside(make_reward_batch):
    """A loop over the tokens of the whole batch, prompts, turns and lengths mixed."""
    rows = [[(2, 1.0), (1, 0.5)], [(1, 0.25)], [(4, -1.0)]]
    batch = make_reward_batch(rows, [0, 0, 1], kl_penalty=-0.125, dtype=torch.float64)

    result = Reinforce(ReinforceConfig(gamma=0.5))(batch)

    returns = []
    for row, kept in zip(batch.token_rewards, batch.action_mask, strict=True):
        numbers = row[kept].tolist()
        sums = [
            sum(0.5 ** (s - t) * numbers[s] for s in range(t, len(numbers)))
            for t in range(len(numbers))
        ]
        returns.append(sums)
    flat = [value for row in returns for value in row]
    mean = sum(flat) / len(flat)
    std = (sum((value - mean) ** 2 for value in flat) / len(flat)) ** 0.5
    assert_rows(result, batch, [[(value - mean) / std for value in row] for row in returns], 1e-12)


def test_whitening_the_mean_keeps_the_scale(golden_batch):
    result = Reinforce(ReinforceConfig(whiten="mean"))(golden_batch)

    # Five tokens of 1 and three of 0: mean 0.625.
    expected = [[0.375] * 2, [-0.625] * 3, [0.375], [0.375] * 2]
    assert_rows(result, golden_batch, expected)

"""``group_norm``: GRPO's advantage."""

import math
import statistics

import pytest
import torch

from rlhf_core import Config
from rlhf_plugin_algorithms.advantages.dr_grpo import DrGrpo
from rlhf_plugin_algorithms.advantages.group_norm import GroupNorm, GroupNormConfig

SMALL_EPS = 1e-6


CANCELING = ([1.0, -1.0, -1.0, 1.0], [0, 0, 1, 1])
"""Rewards of four rows, and their episodes: both have the mean 0."""


def assert_rows(result, batch, expected, tolerance=1e-6):
    for row, kept, numbers in zip(result.advantages, batch.action_mask, expected, strict=True):
        assert row[kept].tolist() == pytest.approx(numbers, abs=tolerance)


def repeated(values, batch):
    """Each row's number at all of its action tokens."""
    lengths = batch.action_mask.sum(dim=1).tolist()
    return [[value] * length for value, length in zip(values, lengths, strict=True)]


def test_group_norm_by_hand(golden_batch):
    result = GroupNorm(GroupNormConfig())(golden_batch)

    # Mean 0.5, sample std sqrt(0.25 + 0.25) = 0.707107: 0.5 / 0.707207. Equal rewards: exactly 0.
    expected = 0.5 / (math.sqrt(0.5) + 1e-4)
    assert_rows(result, golden_batch, repeated([expected, -expected, 0.0, 0.0], golden_batch))
    assert (result.advantages[2:] == 0).all()


def test_group_norm_with_the_population_std_by_hand(golden_batch):
    result = GroupNorm(GroupNormConfig(std="population"))(golden_batch)

    # Population std 0.5: 0.5 / 0.5001
    expected = 0.5 / 0.5001
    assert_rows(result, golden_batch, repeated([expected, -expected, 0.0, 0.0], golden_batch))


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([1.0, 0.0], [0.707107, -0.707107]), ([1.0, 0.0, 0.5], [1.0, -1.0, 0.0])],
)
def test_group_norm_agrees_with_openrlhf_but_for_its_eps(make_reward_batch, rewards, expected):
    """OpenRLHF 0.11.2 adds 1e-9, which turns the rounding of equal rewards into advantages near 1."""
    batch = make_reward_batch([[(1, reward)] for reward in rewards], group=[0] * len(rewards))

    close = GroupNorm(GroupNormConfig(eps=SMALL_EPS))(batch)
    default = GroupNorm(GroupNormConfig())(batch)

    assert_rows(close, batch, [[value] for value in expected], tolerance=3e-6)
    assert_rows(default, batch, [[value] for value in expected], tolerance=3e-4)


def test_the_kl_penalty_is_added_unscaled(make_reward_batch):
    batch = make_reward_batch([[(2, 1.0)], [(1, 0.0)]], group=[0, 0], kl_penalty=-0.05)

    scaled = GroupNorm(GroupNormConfig(std="population"))(batch)
    centered = DrGrpo(Config())(batch)

    unit = 0.5 / 0.5001
    assert_rows(scaled, batch, [[unit - 0.1, unit - 0.05], [-unit - 0.05]])
    assert_rows(centered, batch, [[0.4, 0.45], [-0.55]])


def test_each_turn_is_normalized_by_what_came_after_it(make_reward_batch):
    """Both episodes earn 1. Divided by the std of whole episodes, which is 0, turn 1 would get -+5000."""
    batch = make_reward_batch([[(1, 1.0), (2, 0.0)], [(2, 0.0), (1, 1.0)]], group=[0, 0])

    result = GroupNorm(GroupNormConfig(std="population"))(batch)

    # From turn 1 on they earned 0 and 1: mean 0.5, std 0.5.
    unit = 0.5 / 0.5001
    assert_rows(result, batch, [[0.0, -unit, -unit], [0.0, 0.0, unit]])


def test_the_kl_penalty_of_earlier_turns_is_no_reward(make_reward_batch):
    batch = make_reward_batch(
        [[(2, 1.0), (1, 0.0)], [(1, 0.0), (1, 1.0)]], group=[0, 0], kl_penalty=-0.125
    )

    result = DrGrpo(Config())(batch)

    # Without the penalty: 0, 0, -0.5 and 0, 0.5. With it, each token pays for itself and for the tokens after it.
    assert_rows(result, batch, [[-0.375, -0.25, -0.625], [-0.25, 0.375]], tolerance=0.0)


def test_rewards_that_differ_by_rounding_give_almost_no_advantage(make_reward_batch):
    batch = make_reward_batch([[(1, 0.1)], [(1, 0.1 + 1.5e-8)], [(1, 0.1 - 1.5e-8)]], group=[0] * 3)

    assert batch.rewards.unique().numel() > 1
    assert GroupNorm(GroupNormConfig())(batch).advantages.abs().max() < 1e-3


@pytest.mark.parametrize("std", ["sample", "population"])
def test_groups_of_different_sizes_equal_a_loop(make_reward_batch, std):
    rewards = [1.0, 0.5, -1.0, 0.25, 2.0, 0.0, 0.75]
    group = [0, 1, 0, 1, 0, 2, 2]
    batch = make_reward_batch([[(1, r)] for r in rewards], group)

    spread = statistics.stdev if std == "sample" else statistics.pstdev
    expected = []
    for i, reward in enumerate(rewards):
        members = [r for r, g in zip(rewards, group, strict=True) if g == group[i]]
        expected.append([(reward - statistics.fmean(members)) / (spread(members) + 1e-4)])

    assert_rows(GroupNorm(GroupNormConfig(std=std))(batch), batch, expected)


@pytest.mark.parametrize(("std", "expected"), [("sample", 2.0**-0.5), ("population", 1.0)])
def test_rows_that_cancel_within_their_episodes_by_hand(make_reward_batch, std, expected):
    """Mean 0; each row weighs 1/2, so the squares add up to 2, over n - 1 = 1 or n = 2 episodes.

    The deviation of the episodes' means is 0, by which the rows would get 1 / eps = 10^4.
    """
    rewards, episode = CANCELING
    batch = make_reward_batch([[(2, r)] for r in rewards], [0] * 4, episode=episode)

    actual = GroupNorm(GroupNormConfig(std=std, eps=1e-6))(batch).advantages

    signs = torch.tensor(rewards)[:, None].expand(4, 2)
    torch.testing.assert_close(actual, signs * expected, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize(("std", "correction"), [("sample", 1), ("population", 0)])
def test_advantages_are_bounded_whatever_the_rows_of_an_episode_earned(
    make_reward_batch, std, correction
):
    """``sqrt((n - correction) * (m - 1/n))`` for n episodes and m rows of the row's own."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        num = int(torch.randint(2, 9, (1,), generator=generator))
        _, episode = torch.unique(
            torch.randint(0, num, (num,), generator=generator), return_inverse=True
        )
        rewards = torch.randn(num, generator=generator).pow(5)
        batch = make_reward_batch([[(1, r)] for r in rewards.tolist()], [0] * num, episode.tolist())

        actual = GroupNorm(GroupNormConfig(std=std))(batch).advantages[:, 0]

        rows, size = torch.bincount(episode)[episode], int(episode.max()) + 1
        bound = (max(size - correction, 1) * (rows - 1 / size)).sqrt()
        assert (actual.abs() <= bound * (1 + 1e-5)).all()

"""``grpo_passk``: what a sample adds to the best of a set."""

import itertools
import math
import statistics

import pytest
import torch

from rlhf_plugin_algorithms.advantages.group_norm import GroupNorm, GroupNormConfig
from rlhf_plugin_algorithms.advantages.grpo_passk import (
    GrpoPassk,
    GrpoPasskConfig,
    analytic_passk_advantages,
)


def first_tokens(make_reward_batch, rewards, group=None, episode=None, **options):
    batch = make_reward_batch([[(1, r)] for r in rewards], group or [0] * len(rewards), episode)
    return GrpoPassk(GrpoPasskConfig(**options))(batch).advantages[:, 0].tolist()


def test_the_margin_by_hand(make_reward_batch):
    rewards = [0.25, 1.0, 0.75, -1.0, -3.0]

    # 1 - 0.75 and -1 - -3
    actual = first_tokens(make_reward_batch, rewards, [0, 0, 0, 1, 1], std="none")

    assert actual == [0.0, 0.25, 0.0, 2.0, 0.0]


def test_the_margin_is_divided_by_the_sample_s_standard_deviation(make_reward_batch):
    rewards = [0.25, 1.0, 0.75]

    actual = first_tokens(make_reward_batch, rewards)

    expected = 0.25 / (statistics.stdev(rewards) + 1e-4)
    assert actual == pytest.approx([0.0, expected, 0.0])


def test_of_several_best_samples_none_is_needed(make_reward_batch):
    assert first_tokens(make_reward_batch, [1.0, 0.0, 1.0, 0.5]) == [0.0] * 4


@pytest.mark.parametrize(("value", "size"), [(0.1, 8), (0.3, 7), (0.9, 16), (0.7, 1)])
@pytest.mark.parametrize("advantage", ["margin", "analytic"])
def test_equal_rewards_give_no_advantage(make_reward_batch, value, size, advantage):
    actual = first_tokens(make_reward_batch, [value] * size, advantage=advantage)

    assert actual == [0.0] * size


def test_margins_of_random_groups_equal_sorting(make_reward_batch):
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(30, generator=generator).tolist()
    group = torch.randint(0, 7, (30,), generator=generator)
    group = torch.unique(group, return_inverse=True)[1].tolist()

    actual = first_tokens(make_reward_batch, rewards, group, std="none")

    for i, reward in enumerate(rewards):
        others = [rewards[j] for j in range(30) if group[j] == group[i] and j != i]
        expected = max(0.0, reward - max(others)) if others else 0.0
        assert actual[i] == pytest.approx(expected, abs=1e-6)


def test_rows_of_one_episode_count_once(make_reward_batch):
    rows, rewards = [0, 0, 1, 2], [1.0, 0.25, 0.0]
    episode_rewards = [rewards[i] for i in rows]

    actual = first_tokens(make_reward_batch, episode_rewards, [0] * 4, rows, std="none")

    assert actual == [0.75, 0.75, 0.0, 0.0]


@pytest.mark.parametrize("num_wrong", [1, 3, 5])
@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_the_analytic_advantage_equals_enumerating_all_sets(num_wrong, k):
    size = 6
    correct = [i >= num_wrong for i in range(size)]
    sets = list(itertools.combinations(range(size), k))
    earned = [float(any(correct[i] for i in members)) for members in sets]
    mean = statistics.fmean(earned)
    std = math.sqrt(mean * (1 - mean))

    actual = analytic_passk_advantages(
        torch.tensor(correct), torch.zeros(size, dtype=torch.int64), torch.arange(size), k=k
    )

    for i in range(size):
        mine = [r for r, members in zip(earned, sets, strict=True) if i in members]
        expected = (statistics.fmean(mine) - mean) / std if std else 0.0
        assert actual[i].item() == pytest.approx(expected, abs=1e-12)


def test_sets_of_one_give_grpo_with_the_population_s_standard_deviation(make_reward_batch):
    rewards = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    group = [0, 0, 0, 0, 1, 1, 1]
    batch = make_reward_batch([[(2, r)] for r in rewards], group)

    actual = GrpoPassk(GrpoPasskConfig(advantage="analytic", k=1))(batch).advantages
    expected = GroupNorm(GroupNormConfig(std="population", eps=1e-6))(batch).advantages

    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_the_analytic_advantage_by_hand(make_reward_batch):
    # n = 4, 3 wrong, k = 2: 1 - R = 3/6, S = 0.5. Correct: 0.5 / 0.5. Wrong: (0.5 - 2/3) / 0.5.
    actual = first_tokens(make_reward_batch, [0.0, 1.0, 0.0, 0.0], advantage="analytic", k=2)

    assert actual == pytest.approx([-1 / 3, 1.0, -1 / 3, -1 / 3])


@pytest.mark.parametrize("rewards", [[0.0, 1.0], [0.0, 0.0], [1.0, 1.0, 0.0]])
def test_a_group_smaller_than_k_teaches_nothing(make_reward_batch, rewards):
    """Filters can leave one; starting with fewer than k samples is refused."""
    actual = first_tokens(make_reward_batch, rewards, advantage="analytic", k=4)

    assert actual == [0.0] * len(rewards)


def test_fewer_than_k_wrong_samples_teach_nothing(make_reward_batch):
    actual = first_tokens(make_reward_batch, [1.0, 0.0, 0.0, 1.0], advantage="analytic", k=3)

    assert actual == [0.0] * 4


def test_what_is_correct_is_an_option(make_reward_batch):
    rewards = [0.25, 1.0, 0.5, 0.0]

    actual = first_tokens(make_reward_batch, rewards, advantage="analytic", k=2, correct_above=0.5)

    assert actual == pytest.approx([-1 / 3, 1.0, -1 / 3, -1 / 3])


@pytest.mark.parametrize(("k", "size", "num_wrong"), [(64, 256, 200), (512, 1024, 1000)])
def test_large_sets_stay_finite(k, size, num_wrong):
    correct = torch.arange(size) >= num_wrong

    actual = analytic_passk_advantages(
        correct, torch.zeros(size, dtype=torch.int64), torch.arange(size), k=k
    )

    assert torch.isfinite(actual).all()


def test_sets_of_k_need_groups_of_k():
    assert GrpoPasskConfig(advantage="analytic", k=8).needed_by_options() == {"group>=8"}
    assert GrpoPasskConfig(advantage="margin", k=8).needed_by_options() == frozenset()

"""``group_norm`` and ``dr_grpo``."""

import math
import statistics
from dataclasses import replace

import pytest
import torch

from rlhf_core.contracts import metric_values
from rlhf_plugin_grpo.components import DrGrpo, GroupNorm
from rlhf_plugin_grpo.config import DrGrpoConfig, GroupNormConfig

NAN = float("nan")
SMALL_EPS = 1e-6

BOTH = [
    pytest.param(GroupNorm(GroupNormConfig()), id="group_norm"),
    pytest.param(DrGrpo(DrGrpoConfig()), id="dr_grpo"),
]


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


def test_dr_grpo_by_hand(golden_batch):
    """The numbers are also those of OpenRLHF 0.11.2."""
    result = DrGrpo(DrGrpoConfig())(golden_batch)

    assert_rows(result, golden_batch, repeated([0.5, -0.5, 0.0, 0.0], golden_batch))


def test_the_kl_penalty_is_added_unscaled(make_reward_batch):
    batch = make_reward_batch([[(2, 1.0)], [(1, 0.0)]], group=[0, 0], kl_penalty=-0.05)

    scaled = GroupNorm(GroupNormConfig(std="population"))(batch)
    centered = DrGrpo(DrGrpoConfig())(batch)

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


@pytest.mark.parametrize("estimator", BOTH)
def test_with_one_reward_at_the_end_turns_do_not_matter(make_reward_batch, estimator):
    one = make_reward_batch([[(3, 1.0)], [(3, 0.0)], [(2, 0.5)]], group=[0, 0, 0])
    turns = make_reward_batch(
        [[(1, 0.0), (2, 1.0)], [(1, 0.0), (1, 0.0), (1, 0.0)], [(2, 0.5)]], group=[0, 0, 0]
    )

    torch.testing.assert_close(
        estimator(turns).advantages, estimator(one).advantages, atol=0.0, rtol=0.0
    )


@pytest.mark.parametrize("estimator", BOTH)
def test_rows_of_one_episode_count_once(make_reward_batch, estimator):
    rewards, group = [1.0, 0.0, 0.0, 0.5, 0.0], [0, 0, 0, 1, 1]
    rows = [0, 0, 0, 1, 2, 3, 4]
    single = estimator(make_reward_batch([[(2, reward)] for reward in rewards], group))
    split = estimator(
        make_reward_batch([[(2, rewards[i])] for i in rows], [group[i] for i in rows], episode=rows)
    )

    torch.testing.assert_close(split.advantages, single.advantages[torch.tensor(rows)])
    assert metric_values(split.metrics) == pytest.approx(metric_values(single.metrics))


def test_the_kl_penalty_of_earlier_turns_is_no_reward(make_reward_batch):
    batch = make_reward_batch(
        [[(2, 1.0), (1, 0.0)], [(1, 0.0), (1, 1.0)]], group=[0, 0], kl_penalty=-0.125
    )

    result = DrGrpo(DrGrpoConfig())(batch)

    # Without the penalty: 0, 0, -0.5 and 0, 0.5. With it, each token pays for itself and for the tokens after it.
    assert_rows(result, batch, [[-0.375, -0.25, -0.625], [-0.25, 0.375]], tolerance=0.0)


@pytest.mark.parametrize("estimator", BOTH)
@pytest.mark.parametrize(("value", "size"), [(0.1, 8), (0.3, 7), (0.9, 16)])
def test_equal_rewards_give_no_advantage(make_reward_batch, estimator, value, size):
    """With OpenRLHF 0.11.2's expression eight rewards of 0.1 give -0.83."""
    batch = make_reward_batch([[(2, value)]] * size, group=[0] * size, kl_penalty=0.0)

    assert (estimator(batch).advantages == 0).all()


def test_rewards_that_differ_by_rounding_give_almost_no_advantage(make_reward_batch):
    batch = make_reward_batch([[(1, 0.1)], [(1, 0.1 + 1.5e-8)], [(1, 0.1 - 1.5e-8)]], group=[0] * 3)

    assert batch.rewards.unique().numel() > 1
    assert GroupNorm(GroupNormConfig())(batch).advantages.abs().max() < 1e-3


@pytest.mark.parametrize("estimator", BOTH)
def test_a_group_of_one_gives_no_advantage(make_reward_batch, estimator):
    batch = make_reward_batch([[(2, 0.7)], [(1, 1.0)]], group=[0, 1])

    assert (estimator(batch).advantages == 0).all()


@pytest.mark.parametrize("estimator", BOTH)
def test_adding_a_constant_to_a_group_changes_nothing(make_reward_batch, estimator):
    rewards, group = [1.0, 0.25, -0.5, 2.0, 0.0], [0, 0, 0, 1, 1]
    shifted = [reward + (8.0 if g else -4.0) for reward, g in zip(rewards, group, strict=True)]

    torch.testing.assert_close(
        estimator(make_reward_batch([[(2, r)] for r in shifted], group)).advantages,
        estimator(make_reward_batch([[(2, r)] for r in rewards], group)).advantages,
    )


def test_scaling_a_group_changes_nothing_for_group_norm_and_scales_dr_grpo(make_reward_batch):
    rewards = [1.0, 0.25, -0.5]
    batch = make_reward_batch([[(1, r)] for r in rewards], [0] * 3)
    scaled = make_reward_batch([[(1, 8 * r)] for r in rewards], [0] * 3)
    norm, centered = GroupNorm(GroupNormConfig(eps=SMALL_EPS)), DrGrpo(DrGrpoConfig())

    torch.testing.assert_close(
        norm(scaled).advantages, norm(batch).advantages, atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(centered(scaled).advantages, 8 * centered(batch).advantages)


@pytest.mark.parametrize("estimator", BOTH)
def test_padding_changes_nothing(make_reward_batch, estimator):
    rows = [[(2, 1.0), (1, 0.5)], [(1, 0.25)], [(2, 0.0)], [(4, -1.0)]]
    narrow = make_reward_batch(rows, [0, 0, 1, 1], kl_penalty=-0.1)
    wide = make_reward_batch(rows, [0, 0, 1, 1], kl_penalty=-0.1, padding=NAN, extra_columns=3)

    actual = estimator(wide).advantages

    assert (actual[~wide.action_mask] == 0).all()
    torch.testing.assert_close(actual[:, :4], estimator(narrow).advantages)


@pytest.mark.parametrize("estimator", BOTH)
def test_the_order_of_rows_does_not_matter(make_reward_batch, estimator):
    rows = [[(2, 1.0), (1, 0.5)], [(1, 0.25)], [(2, 0.0)], [(3, -1.0)], [(3, 0.5)]]
    group, episode, order = [0, 0, 1, 1, 1], [0, 1, 2, 3, 3], [3, 0, 4, 2, 1]

    def pick(values):
        return [values[i] for i in order]

    whole = estimator(make_reward_batch(rows, group, episode))
    shuffled = estimator(make_reward_batch(pick(rows), pick(group), pick(episode)))

    torch.testing.assert_close(shuffled.advantages, whole.advantages[torch.tensor(order)])


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


@pytest.mark.parametrize("estimator", BOTH)
def test_the_batch_is_left_as_it_is(make_reward_batch, estimator):
    batch = make_reward_batch([[(2, 1.0)], [(1, 0.0)]], group=[0, 0], kl_penalty=-0.1)
    copy = replace(batch, token_rewards=batch.token_rewards.clone(), rewards=batch.rewards.clone())

    estimator(batch)

    assert torch.equal(batch.token_rewards, copy.token_rewards)
    assert torch.equal(batch.rewards, copy.rewards)


@pytest.mark.parametrize("estimator", BOTH)
def test_large_rewards_stay_finite(make_reward_batch, estimator):
    batch = make_reward_batch([[(2, 1e30)], [(1, -1e30)]], group=[0, 0])

    assert torch.isfinite(estimator(batch).advantages).all()


CANCELING = ([1.0, -1.0, -1.0, 1.0], [0, 0, 1, 1])
"""Rewards of four rows, and their episodes: both have the mean 0."""


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

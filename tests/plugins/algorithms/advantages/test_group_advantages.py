"""``group_norm`` and ``dr_grpo``."""

from dataclasses import replace

import pytest
import torch

from rlhf_core import Config
from rlhf_core.contracts import metric_values
from rlhf_plugin_algorithms.advantages.dr_grpo import DrGrpo
from rlhf_plugin_algorithms.advantages.group_norm import GroupNorm, GroupNormConfig

NAN = float("nan")
SMALL_EPS = 1e-6

BOTH = [
    pytest.param(GroupNorm(GroupNormConfig()), id="group_norm"),
    pytest.param(DrGrpo(Config()), id="dr_grpo"),
]


def assert_rows(result, batch, expected, tolerance=1e-6):
    for row, kept, numbers in zip(result.advantages, batch.action_mask, expected, strict=True):
        assert row[kept].tolist() == pytest.approx(numbers, abs=tolerance)


def repeated(values, batch):
    """Each row's number at all of its action tokens."""
    lengths = batch.action_mask.sum(dim=1).tolist()
    return [[value] * length for value, length in zip(values, lengths, strict=True)]


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


@pytest.mark.parametrize("estimator", BOTH)
@pytest.mark.parametrize(("value", "size"), [(0.1, 8), (0.3, 7), (0.9, 16)])
def test_equal_rewards_give_no_advantage(make_reward_batch, estimator, value, size):
    """With OpenRLHF 0.11.2's expression eight rewards of 0.1 give -0.83."""
    batch = make_reward_batch([[(2, value)]] * size, group=[0] * size, kl_penalty=0.0)

    assert (estimator(batch).advantages == 0).all()


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

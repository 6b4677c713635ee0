"""``reinforce_baseline``: rewards against the group's mean, whitened over the batch."""

import pytest

from rlhf_core import Config
from rlhf_plugin_algorithms.advantages.reinforce_baseline import (
    ReinforceBaseline,
    ReinforceBaselineConfig,
)
from rlhf_plugin_algorithms.advantages.rloo import Rloo


def rows_of(advantages, mask):
    """The advantages of each row's action tokens."""
    return [row[kept].tolist() for row, kept in zip(advantages, mask, strict=True)]


def assert_rows(result, batch, expected, tolerance=1e-6):
    actual = rows_of(result.advantages, batch.action_mask)
    assert [len(row) for row in actual] == [len(row) for row in expected]
    for row, numbers in zip(actual, expected, strict=True):
        assert row == pytest.approx(numbers, abs=tolerance)


def test_a_turn_is_judged_by_what_came_after_it(make_reward_batch):
    """Two episodes of two turns that both earn 1, one with its first turn and one with its second."""
    batch = make_reward_batch([[(1, 1.0), (2, 0.0)], [(2, 0.0), (1, 1.0)]], group=[0, 0])

    result = ReinforceBaseline(ReinforceBaselineConfig(whiten="none"))(batch)

    # From turn 0 on both earned 1. From turn 1 on they earned 0 and 1, with a mean of 0.5.
    assert_rows(result, batch, [[0.0, -0.5, -0.5], [0.0, 0.0, 0.5]])


def test_the_kl_penalty_of_earlier_turns_is_no_reward(make_reward_batch):
    batch = make_reward_batch(
        [[(2, 1.0), (1, 0.0)], [(1, 0.0), (1, 1.0)]], group=[0, 0], kl_penalty=-0.125
    )

    result = ReinforceBaseline(ReinforceBaselineConfig(whiten="none"))(batch)

    # Without the penalty: 0, 0, -0.5 and 0, 0.5. With it, each token pays for itself and for the tokens after it.
    assert_rows(result, batch, [[-0.375, -0.25, -0.625], [-0.25, 0.375]], tolerance=0.0)


def test_groups_of_different_sizes_equal_a_loop(make_reward_batch):
    rewards = [1.0, 0.5, -1.0, 0.25, 2.0, 0.0, 0.75]
    group = [0, 1, 0, 1, 0, 2, 2]
    batch = make_reward_batch([[(1, r)] for r in rewards], group=group)

    loo, centered = [], []
    for i, reward in enumerate(rewards):
        members = [r for r, g in zip(rewards, group, strict=True) if g == group[i]]
        loo.append([reward - (sum(members) - reward) / (len(members) - 1)])
        centered.append([reward - sum(members) / len(members)])

    assert_rows(Rloo(Config())(batch), batch, loo)
    raw = ReinforceBaseline(ReinforceBaselineConfig(whiten="none"))
    assert_rows(raw(batch), batch, centered)

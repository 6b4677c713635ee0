"""``rloo``: rewards against the mean of the group's other samples."""

import pytest
import torch

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


def test_rloo_is_the_group_baseline_times_n_over_n_minus_1(make_reward_batch):
    batch = make_reward_batch([[(1, r)] for r in (1.0, 0.0, 0.5, 2.0)], group=[0] * 4)

    loo = Rloo(Config())(batch).advantages
    baseline = ReinforceBaseline(ReinforceBaselineConfig(whiten="none"))(batch).advantages

    torch.testing.assert_close(loo, baseline * 4 / 3)


def test_the_kl_penalty_acts_token_by_token(make_reward_batch):
    """The numbers are also those of OpenRLHF 0.11.2 with coefficient 0.1 and a KL of 0.5 at every token."""
    batch = make_reward_batch(
        [[(2, 1.0)], [(3, 0.0)], [(1, 1.0)], [(2, 1.0)]], group=[0, 0, 1, 1], kl_penalty=-0.05
    )

    result = Rloo(Config())(batch)

    # Each token pays 0.05 for itself and for each token after it.
    assert_rows(result, batch, [[0.9, 0.95], [-1.15, -1.1, -1.05], [-0.05], [-0.1, -0.05]])


def test_an_episode_that_ended_earlier_is_compared_with_its_last_turn(make_reward_batch):
    batch = make_reward_batch([[(1, 3.0)], [(1, 0.5), (1, 1.0)]], group=[0, 0])

    result = Rloo(Config())(batch)

    # Turn 0: 3 against 1.5. Turn 1: 1 against the 3 with which the other episode ended.
    assert_rows(result, batch, [[1.5], [-1.5, -2.0]])

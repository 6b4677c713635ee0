"""``opo``: rewards against the group's mean, weighted by length."""

import pytest
import torch

from rlhf_core import Config
from rlhf_core.math import masked_mean
from rlhf_plugin_algorithms.advantages.opo import Opo
from rlhf_plugin_algorithms.advantages.reinforce_baseline import (
    ReinforceBaseline,
    ReinforceBaselineConfig,
)

ESTIMATOR = Opo(Config())
MEAN = ReinforceBaseline(ReinforceBaselineConfig(whiten="none"))


def test_advantages_by_hand(golden_batch):
    actual = ESTIMATOR(golden_batch).advantages

    # Lengths 2 and 3, rewards 1 and 0: baseline 2 / 5. The second prompt's rewards are equal.
    expected = torch.tensor([[0.6, 0.6, 0.0], [-0.4, -0.4, -0.4], [0.0] * 3, [0.0] * 3])
    torch.testing.assert_close(actual, expected)
    assert (actual[2:] == 0).all()


def test_equal_lengths_give_the_plain_mean(make_reward_batch):
    batch = make_reward_batch([[(3, r)] for r in (1.0, 0.25, -0.5, 2.0, 0.0)], [0, 0, 0, 1, 1])

    torch.testing.assert_close(ESTIMATOR(batch).advantages, MEAN(batch).advantages)


def test_over_the_tokens_of_a_group_the_advantages_have_mean_0(make_reward_batch):
    batch = make_reward_batch([[(7, 1.0)], [(1, 0.25)], [(4, -0.5)]], group=[0, 0, 0])

    mean = masked_mean(ESTIMATOR(batch).advantages, batch.action_mask)

    assert mean.item() == pytest.approx(0.0, abs=1e-7)


def test_groups_of_different_sizes_equal_a_loop(make_reward_batch):
    rewards = [1.0, 0.5, -1.0, 0.25, 2.0, 0.0, 0.75]
    lengths, group = [1, 4, 2, 3, 5, 2, 6], [0, 1, 0, 1, 0, 2, 2]
    batch = make_reward_batch([[(n, r)] for n, r in zip(lengths, rewards, strict=True)], group)

    actual = ESTIMATOR(batch).advantages

    for i, reward in enumerate(rewards):
        members = [j for j in range(7) if group[j] == group[i]]
        tokens = sum(lengths[j] for j in members)
        baseline = sum(lengths[j] * rewards[j] for j in members) / tokens
        assert actual[i, : lengths[i]].tolist() == pytest.approx([reward - baseline] * lengths[i])


@pytest.mark.parametrize(("value", "size"), [(0.1, 8), (0.3, 7), (0.9, 16)])
def test_equal_rewards_give_no_advantage_whatever_the_lengths(make_reward_batch, value, size):
    batch = make_reward_batch([[(1 + i % 5, value)] for i in range(size)], group=[0] * size)

    assert (ESTIMATOR(batch).advantages == 0).all()


def test_a_group_of_one_gives_no_advantage(make_reward_batch):
    batch = make_reward_batch([[(2, 0.7)], [(1, 1.0)]], group=[0, 1])

    assert (ESTIMATOR(batch).advantages == 0).all()


def test_an_episode_of_several_rows_counts_with_its_mean_and_all_of_its_tokens(make_reward_batch):
    batch = make_reward_batch(
        [[(2, 1.0)], [(4, 0.0)], [(2, 0.0)]], group=[0, 0, 0], episode=[0, 0, 1]
    )

    actual = ESTIMATOR(batch).advantages

    # Episode 0: mean 0.5, 6 tokens; episode 1: 0, 2 tokens. Baseline 3 / 8.
    assert actual[:, 0].tolist() == pytest.approx([0.625, -0.375, -0.375])


def test_action_tokens_of_all_turns_make_the_length(make_reward_batch):
    one = make_reward_batch([[(3, 1.0)], [(2, 0.0)]], group=[0, 0])
    turns = make_reward_batch([[(1, 0.0), (2, 1.0)], [(1, 0.0), (1, 0.0)]], group=[0, 0])

    assert torch.equal(ESTIMATOR(turns).advantages, ESTIMATOR(one).advantages)

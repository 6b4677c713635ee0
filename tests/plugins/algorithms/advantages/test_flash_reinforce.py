"""``flash_reinforce``: rewards against the mean of the whole batch."""

import pytest
import torch

from rlhf_core import Config
from rlhf_plugin_algorithms.advantages.flash_reinforce import FlashReinforce
from rlhf_plugin_algorithms.advantages.reinforce import Reinforce, ReinforceConfig

ESTIMATOR = FlashReinforce(Config())


def test_advantages_by_hand(golden_batch):
    """The numbers are also those of OpenRLHF 0.11.2."""
    actual = ESTIMATOR(golden_batch).advantages

    # Mean of 1, 0, 1, 1: 0.75, over samples and not over tokens (5/8).
    expected = torch.tensor(
        [[0.25, 0.25, 0.0], [-0.75, -0.75, -0.75], [0.25, 0.0, 0.0], [0.25, 0.25, 0.0]]
    )
    torch.testing.assert_close(actual, expected, atol=0.0, rtol=0.0)


def test_which_prompt_a_sample_belongs_to_does_not_matter(make_reward_batch):
    rows = [[(2, 1.0)], [(3, 0.0)], [(1, 0.25)], [(2, -1.0)]]

    together = ESTIMATOR(make_reward_batch(rows, group=[0, 0, 1, 1])).advantages
    apart = ESTIMATOR(make_reward_batch(rows, group=[0, 1, 2, 3])).advantages

    assert torch.equal(together, apart)


def test_with_equal_lengths_it_is_reinforce_with_the_mean_removed(make_reward_batch):
    batch = make_reward_batch([[(2, r)] for r in (1.0, 0.0, 0.5, 2.0)], group=[0, 0, 1, 1])

    torch.testing.assert_close(
        ESTIMATOR(batch).advantages,
        Reinforce(ReinforceConfig(whiten="mean"))(batch).advantages,
    )


@pytest.mark.parametrize(("value", "size"), [(0.1, 8), (0.3, 7), (0.9, 16)])
def test_equal_rewards_in_the_batch_give_no_advantage(make_reward_batch, value, size):
    batch = make_reward_batch([[(2, value)]] * size, group=list(range(size)))

    assert (ESTIMATOR(batch).advantages == 0).all()


def test_rows_of_one_episode_count_once(make_reward_batch):
    batch = make_reward_batch(
        [[(1, 1.0)], [(2, 1.0)], [(1, 0.0)]], group=[0, 0, 1], episode=[0, 0, 1]
    )

    actual = ESTIMATOR(batch).advantages

    # Mean of 1 and 0, not of 1, 1 and 0.
    assert actual.tolist() == [[0.5, 0.0], [0.5, 0.5], [-0.5, 0.0]]


def test_a_turn_is_judged_by_what_came_after_it_against_the_mean_of_whole_rewards(
    make_reward_batch,
):
    batch = make_reward_batch([[(1, 1.0), (1, 0.5)], [(1, 0.5)]], group=[0, 1])

    # Mean of 1.5 and 0.5 is 1. The first sample still earns 1.5, then 0.5.
    assert ESTIMATOR(batch).advantages.tolist() == [[0.5, -0.5], [-0.5, 0.0]]


def test_the_kl_penalty_stays_out_of_the_baseline(make_reward_batch):
    batch = make_reward_batch([[(2, 1.0)], [(1, 0.0)]], group=[0, 1], kl_penalty=-0.125)

    assert ESTIMATOR(batch).advantages.tolist() == [[0.25, 0.375], [-0.625, 0.0]]

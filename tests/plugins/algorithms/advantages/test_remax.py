"""``remax``: rewards against that of the greedy response."""

from dataclasses import replace

import pytest
import torch

from rlhf_core import Config
from rlhf_core.contracts import metric_values
from rlhf_plugin_algorithms.advantages.remax import Remax

ESTIMATOR = Remax(Config())


def test_advantages_by_hand(golden_batch):
    batch = replace(golden_batch, greedy_rewards=torch.tensor([0.25, 0.25, 1.0, 1.0]))

    # 1 - 0.25, 0 - 0.25, 1 - 1, 1 - 1
    expected = torch.tensor([[0.75, 0.75, 0.0], [-0.25, -0.25, -0.25], [0.0] * 3, [0.0] * 3])
    torch.testing.assert_close(ESTIMATOR(batch).advantages, expected, atol=0.0, rtol=0.0)


@pytest.mark.parametrize("value", [0.1, 0.3, 0.9])
def test_a_sample_that_earns_what_the_greedy_one_did_gets_nothing(make_reward_batch, value):
    batch = make_reward_batch([[(2, value)], [(1, value), (2, 0.0)]], group=[0, 1])
    batch = replace(batch, greedy_rewards=torch.full((2,), value))

    advantages = ESTIMATOR(batch).advantages

    assert (advantages[0] == 0).all()
    assert advantages[1, 0] == 0


def test_other_samples_of_the_prompt_do_not_matter(make_reward_batch):
    greedy = torch.tensor([0.5, 0.5])
    first = replace(make_reward_batch([[(1, 1.0)], [(1, 0.0)]], [0, 0]), greedy_rewards=greedy)
    second = replace(make_reward_batch([[(1, 1.0)], [(1, 9.0)]], [0, 0]), greedy_rewards=greedy)

    assert torch.equal(ESTIMATOR(first).advantages[0], ESTIMATOR(second).advantages[0])


def test_it_equals_the_reward_to_go_minus_the_baseline_with_a_kl_penalty(make_reward_batch):
    """Token by token, as verl 0.9.1 writes it: the sum of what is to come, minus the greedy reward."""
    batch = make_reward_batch([[(3, 1.0)], [(1, 0.5)]], group=[0, 1], kl_penalty=-0.25)
    batch = replace(batch, greedy_rewards=torch.tensor([0.5, 2.0]))

    actual = ESTIMATOR(batch).advantages

    for row in range(2):
        for token in range(int(batch.action_mask[row].sum())):
            rest = batch.token_rewards[row, token:][batch.action_mask[row, token:]].sum()
            assert actual[row, token] == rest - batch.greedy_rewards[row]


def test_a_turn_is_judged_by_what_came_after_it(make_reward_batch):
    batch = make_reward_batch([[(1, 1.0), (1, 0.5)]], group=[0])
    batch = replace(batch, greedy_rewards=torch.tensor([1.0]))

    # 1.5 - 1 and 0.5 - 1
    assert ESTIMATOR(batch).advantages.tolist() == [[0.5, -0.5]]


def test_the_greedy_reward_is_reported_once_per_prompt(make_reward_batch):
    batch = make_reward_batch([[(1, 0.0)]] * 4, group=[0, 0, 0, 1])
    batch = replace(batch, greedy_rewards=torch.tensor([1.0, 1.0, 1.0, 0.0]))

    assert metric_values(ESTIMATOR(batch).metrics) == pytest.approx({"remax/greedy_reward": 0.5})

"""``hierarchical_grpo``: attempts at one problem compared with each other, proposals with other proposals."""

from dataclasses import replace

import pytest
import torch

from rlhf_core import Config
from rlhf_core.contracts import metric_values
from rlhf_plugin_algorithms.advantages.dr_grpo import DrGrpo
from rlhf_plugin_algorithms.advantages.hierarchical_grpo import (
    HierarchicalGrpo,
    peer_groups,
)

ESTIMATOR = HierarchicalGrpo(Config())


def with_first_observations(batch, first):
    of_row = torch.tensor(first)[:, None].expand(batch.action_mask.shape)
    return replace(batch, observation=torch.where(batch.action_mask, of_row, 0))


@pytest.fixture
def proposals(make_reward_batch):
    """A task (text 0) with two episodes. Each proposes a problem and tries it: three times, and twice."""
    rewards = [0.5, 1.0, 1.0, 0.0, 1.0, 0.0, 0.5]
    batch = make_reward_batch(
        [[(2, reward)] for reward in rewards], group=[0] * 7, episode=[0, 0, 0, 0, 1, 1, 1]
    )
    return with_first_observations(batch, [0, 5, 5, 5, 0, 6, 6])


def test_advantages_by_hand(proposals):
    actual = ESTIMATOR(proposals).advantages[:, 0].tolist()

    # Proposals 0.5 and 1: mean 0.75. Attempts at 5: 1, 1, 0, mean 2/3. Attempts at 6: 0 and 0.5, mean 0.25.
    assert actual == pytest.approx([-0.25, 1 / 3, 1 / 3, -2 / 3, 0.25, -0.25, 0.25])


def test_a_harder_problem_changes_nothing_for_attempts_at_another(proposals):
    harder = proposals.rewards.clone()
    harder[5:] = -3.0
    changed = replace(proposals, rewards=harder, token_rewards=proposals.token_rewards.clone())

    before, after = ESTIMATOR(proposals).advantages, ESTIMATOR(changed).advantages

    assert torch.equal(before[:5], after[:5])


def test_two_episodes_that_propose_the_same_problem_stay_apart(proposals):
    same = with_first_observations(proposals, [0, 5, 5, 5, 0, 5, 5])

    assert torch.equal(ESTIMATOR(same).advantages, ESTIMATOR(proposals).advantages)


def test_with_one_row_per_episode_it_is_dr_grpo(make_reward_batch):
    rewards, group = [1.0, 0.5, -1.0, 0.25, 2.0, 0.0], [0, 1, 0, 1, 0, 2]
    batch = make_reward_batch([[(2, r)] for r in rewards], group, kl_penalty=-0.125)

    actual = ESTIMATOR(with_first_observations(batch, group)).advantages

    assert torch.equal(actual, DrGrpo(Config())(batch).advantages)


def test_a_row_without_peers_gets_nothing_and_is_counted(make_reward_batch):
    batch = make_reward_batch(
        [[(1, 1.0)], [(1, 0.5)], [(1, 0.0)], [(1, 0.0)]], group=[0] * 4, episode=[0, 0, 1, 1]
    )

    # One attempt each, at different problems.
    result = ESTIMATOR(with_first_observations(batch, [0, 3, 0, 4]))

    assert result.advantages[:, 0].tolist() == [0.5, 0.0, -0.5, 0.0]
    assert metric_values(result.metrics) == {"hierarchical_grpo/without_peers": 0.5}


def test_peers_equal_a_loop():
    generator = torch.Generator().manual_seed(0)
    episode = torch.randint(0, 10, (40,), generator=generator)
    episode = torch.unique(episode, return_inverse=True)[1]
    group = episode // 3
    first = 10 * group + torch.randint(0, 4, (40,), generator=generator)

    actual = peer_groups(first, group, episode)

    def siblings(i):
        return [j for j in range(40) if episode[j] == episode[i] and first[j] == first[i]]

    for i in range(40):
        expected = siblings(i)
        if len(expected) == 1:
            expected = [j for j in range(40) if first[j] == first[i] and len(siblings(j)) == 1]
        assert torch.nonzero(actual == actual[i]).flatten().tolist() == expected


@pytest.mark.parametrize(("value", "size"), [(0.1, 8), (0.3, 7), (0.9, 16)])
def test_equal_rewards_among_peers_give_no_advantage(make_reward_batch, value, size):
    batch = make_reward_batch([[(1, value)]] * size, group=[0] * size, episode=[0] * size)

    assert (ESTIMATOR(with_first_observations(batch, [0] * size)).advantages == 0).all()


def test_a_turn_is_judged_by_what_came_after_it(make_reward_batch):
    batch = make_reward_batch([[(1, 1.0), (1, 0.0)], [(1, 0.0), (1, 1.0)]], [0, 0], [0, 0])

    actual = ESTIMATOR(with_first_observations(batch, [0, 0])).advantages

    assert actual.tolist() == [[0.0, -0.5], [0.0, 0.5]]

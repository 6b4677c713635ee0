"""``raft``: learn from good samples alone."""

import pytest
import torch

from rlhf_core.contracts import metric_values
from rlhf_plugin_algorithms.advantages.raft import Raft, RaftConfig

REWARDED = Raft(RaftConfig())
BEST = Raft(RaftConfig(keep="best"))


def kept(result):
    return result.advantages[:, 0].tolist()


def test_rewarded_samples_by_hand(golden_batch):
    result = REWARDED(golden_batch)

    expected = torch.tensor([[1.0, 1.0, 0.0], [0.0] * 3, [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    assert torch.equal(result.advantages, expected)
    assert metric_values(result.metrics) == {"raft/kept": 0.75}


def test_the_best_samples_by_hand(make_reward_batch):
    rewards = [0.5, -1.0, 0.5, -2.0, -3.0, 0.1, 0.1]
    batch = make_reward_batch([[(2, r)] for r in rewards], group=[0, 0, 0, 1, 1, 2, 2])

    # Two share the first prompt's best; the second's best is still negative; the third has none.
    assert kept(BEST(batch)) == [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]


def test_the_threshold_itself_is_not_enough(make_reward_batch):
    batch = make_reward_batch([[(1, r)] for r in (0.5, 0.75, 0.25)], group=[0, 0, 0])

    assert kept(Raft(RaftConfig(threshold=0.5))(batch)) == [0.0, 1.0, 0.0]


def test_a_low_enough_threshold_keeps_everything(make_reward_batch):
    batch = make_reward_batch([[(1, r)] for r in (0.5, -0.75)], group=[0, 0])

    assert kept(Raft(RaftConfig(threshold=-1.0))(batch)) == [1.0, 1.0]


@pytest.mark.parametrize(("value", "size"), [(0.1, 8), (0.3, 7), (0.9, 16), (0.0, 2), (0.5, 1)])
def test_where_all_earned_the_same_none_is_best(make_reward_batch, value, size):
    batch = make_reward_batch([[(2, value)]] * size, group=[0] * size)

    assert (BEST(batch).advantages == 0).all()


def test_an_episode_is_kept_or_dropped_as_a_whole(make_reward_batch):
    """Its rows by their mean, its turns by the reward of the row."""
    batch = make_reward_batch(
        [[(1, 1.0)], [(1, -0.5)], [(1, -1.0), (1, 0.5)], [(1, 1.0), (1, -0.5)]],
        group=[0, 0, 0, 0],
        episode=[0, 0, 1, 2],
    )

    # Episodes: mean 0.25; -0.5; 0.5.
    assert REWARDED(batch).advantages.tolist() == [[1, 0], [1, 0], [0, 0], [1, 1]]
    assert BEST(batch).advantages.tolist() == [[0, 0], [0, 0], [0, 0], [1, 1]]
    assert metric_values(REWARDED(batch).metrics) == pytest.approx({"raft/kept": 2 / 3})


def test_best_equals_a_loop(make_reward_batch):
    generator = torch.Generator().manual_seed(0)
    rewards = (torch.randint(0, 3, (30,), generator=generator) / 10).tolist()
    group = torch.unique(torch.randint(0, 8, (30,), generator=generator), return_inverse=True)[1]
    batch = make_reward_batch([[(1, r)] for r in rewards], group=group.tolist())

    expected = []
    for i in range(30):
        members = [rewards[j] for j in range(30) if group[j] == group[i]]
        expected.append(float(rewards[i] == max(members) > min(members)))
    assert kept(BEST(batch)) == expected


def test_the_kl_penalty_acts_token_by_token(make_reward_batch):
    batch = make_reward_batch([[(2, 1.0)], [(1, 0.0)]], group=[0, 0], kl_penalty=-0.125)

    assert REWARDED(batch).advantages.tolist() == [[0.75, 0.875], [-0.125, 0.0]]


def test_choosing_the_best_needs_a_group():
    assert RaftConfig(keep="best").needed_by_options() == {"group>=2"}
    assert RaftConfig().needed_by_options() == frozenset()

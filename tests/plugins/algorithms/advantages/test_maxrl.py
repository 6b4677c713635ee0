"""``maxrl``: rewards against the group's mean, divided by it."""

import pytest
import torch

from rlhf_core import Config
from rlhf_plugin_algorithms.advantages.maxrl import MaxRl

ESTIMATOR = MaxRl(Config())


def advantages_of(make_reward_batch, rewards, group=None):
    batch = make_reward_batch([[(1, r)] for r in rewards], group or [0] * len(rewards))
    return ESTIMATOR(batch).advantages[:, 0].tolist()


def test_advantages_by_hand(make_reward_batch):
    # One success of four: mean 1/4, (1 - 1/4) / (1/4) = 3 = n / s - 1, and -1 for failures.
    assert advantages_of(make_reward_batch, [1.0, 0.0, 0.0, 0.0]) == [3.0, -1.0, -1.0, -1.0]
    # Three of four: 4 / 3 - 1.
    expected = pytest.approx([1 / 3, 1 / 3, -1.0, 1 / 3])
    assert advantages_of(make_reward_batch, [1.0, 1.0, 0.0, 1.0]) == expected


def test_rewards_between_0_and_1_equal_a_loop(make_reward_batch):
    rewards, group = [1.0, 0.5, 0.0, 0.25, 2.0, 0.0, 0.75], [0, 1, 0, 1, 0, 2, 2]

    actual = advantages_of(make_reward_batch, rewards, group)

    for i, reward in enumerate(rewards):
        members = [r for r, g in zip(rewards, group, strict=True) if g == group[i]]
        mean = sum(members) / len(members)
        assert actual[i] == pytest.approx((reward - mean) / mean)


@pytest.mark.parametrize("rewards", [[0.0, 0.0], [-1.0, 1.0], [-1.0, -2.0], [-3.0, 1.0, 0.5]])
def test_a_mean_that_is_not_positive_teaches_nothing(make_reward_batch, rewards):
    assert advantages_of(make_reward_batch, rewards) == [0.0] * len(rewards)


def test_a_mean_near_0_does_not_explode(make_reward_batch):
    """Mean 0.0005: without the bound the success would get 1999. Bound: 1 / 2."""
    actual = advantages_of(make_reward_batch, [1.0, -0.999])

    assert actual == pytest.approx([1.999, -1.999])


@pytest.mark.parametrize(("value", "size"), [(0.1, 8), (0.3, 7), (0.9, 16), (0.7, 1)])
def test_equal_rewards_give_no_advantage(make_reward_batch, value, size):
    assert advantages_of(make_reward_batch, [value] * size) == [0.0] * size


def test_scaling_a_group_changes_nothing(make_reward_batch):
    rewards = [1.0, 0.25, 0.5]

    scaled = advantages_of(make_reward_batch, [8 * r for r in rewards])

    assert scaled == pytest.approx(advantages_of(make_reward_batch, rewards))


def test_the_group_s_advantages_add_up_to_0(make_reward_batch):
    assert sum(advantages_of(make_reward_batch, [1.0, 0.25, 0.5])) == pytest.approx(0.0, abs=1e-6)


def test_rows_of_one_episode_count_once(make_reward_batch):
    rows = [0, 0, 0, 1, 2]
    rewards = [1.0, 0.0, 0.0]
    batch = make_reward_batch([[(1, rewards[i])] for i in rows], [0] * 5, episode=rows)

    # Mean 1/3, not 3/5.
    torch.testing.assert_close(
        ESTIMATOR(batch).advantages[:, 0], torch.tensor([2.0, 2.0, 2.0, -1.0, -1.0])
    )


def test_a_turn_is_judged_by_what_came_after_it(make_reward_batch):
    batch = make_reward_batch([[(1, 1.0), (1, 0.0)], [(1, 0.0), (1, 1.0)]], group=[0, 0])

    # From turn 0 on both earned 1; from turn 1 on 0 and 1, mean 0.5.
    assert ESTIMATOR(batch).advantages.tolist() == [[0.0, -1.0], [0.0, 1.0]]


def test_the_kl_penalty_is_added_unscaled(make_reward_batch):
    batch = make_reward_batch([[(1, 1.0)], [(1, 0.0)]], group=[0, 0], kl_penalty=-0.125)

    assert ESTIMATOR(batch).advantages.tolist() == [[0.875], [-1.125]]


def test_rows_that_cancel_within_their_episodes_do_not_explode(make_reward_batch):
    """Both episodes earn 0.0005 on average, which would give 1999. Bound: the mean of (1, 0) over 2 episodes, 1/4."""
    rewards = [1.0, -0.999, 1.0, -0.999]
    batch = make_reward_batch([[(1, r)] for r in rewards], [0] * 4, episode=[0, 0, 1, 1])

    actual = ESTIMATOR(batch).advantages[:, 0].tolist()

    assert actual == pytest.approx([3.998, -3.998, 3.998, -3.998])


def test_advantages_are_bounded_whatever_the_rows_of_an_episode_earned(make_reward_batch):
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        num = int(torch.randint(2, 9, (1,), generator=generator))
        _, episode = torch.unique(
            torch.randint(0, num, (num,), generator=generator), return_inverse=True
        )
        rewards = torch.randn(num, generator=generator).pow(5)
        batch = make_reward_batch([[(1, r)] for r in rewards.tolist()], [0] * num, episode.tolist())

        actual = ESTIMATOR(batch).advantages[:, 0]

        rows, size = torch.bincount(episode)[episode], int(episode.max()) + 1
        assert (actual <= rows * size + 1e-4).all()
        assert (actual >= -rows * size**2 - 1 - 1e-4).all()

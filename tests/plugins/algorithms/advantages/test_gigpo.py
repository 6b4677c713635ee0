"""``gigpo``: episodes of a prompt compared, and turns that started from the same text."""

import statistics
from dataclasses import replace

import pytest
import torch

from rlhf_core import Config
from rlhf_core.contracts import metric_values
from rlhf_plugin_algorithms.advantages.dr_grpo import DrGrpo
from rlhf_plugin_algorithms.advantages.gigpo import Gigpo, GigpoConfig, discounted_by_turn
from rlhf_plugin_algorithms.advantages.group_norm import GroupNorm, GroupNormConfig

CENTERED = Gigpo(GigpoConfig(norm="none", gamma=1.0))


def with_observations(batch, by_turn):
    """Each row's list of what it read before its turns."""
    rows = [torch.tensor(row)[turns] for row, turns in zip(by_turn, batch.turn, strict=True)]
    return replace(batch, observation=torch.where(batch.action_mask, torch.stack(rows), 0))


@pytest.fixture
def two_rooms(make_reward_batch):
    """Two episodes of a prompt. Turn 1 of the first and turn 2 of the second started from the same text (7)."""
    batch = make_reward_batch([[(1, 0.0), (2, 1.0)], [(1, 0.0), (1, 0.0), (1, 0.5)]], group=[0, 0])
    return with_observations(batch, [[0, 7, 7], [0, 3, 7]])


def test_advantages_by_hand(two_rooms):
    result = CENTERED(two_rooms)

    # Episodes: 1 and 0.5, mean 0.75: +-0.25. Turns from text 0: 1 and 0.5: +-0.25; from 7: the same; 3 is alone.
    expected = torch.tensor([[0.5, 0.5, 0.5], [-0.5, -0.25, -0.5]])
    torch.testing.assert_close(result.advantages, expected)
    assert metric_values(result.metrics) == pytest.approx({"gigpo/shared_turns": 0.8})


def test_turns_are_discounted_and_not_tokens(two_rooms):
    result = Gigpo(GigpoConfig(norm="none", gamma=0.5))(two_rooms)

    # Turns from text 0: 0.5 * 1 and 0.25 * 0.5, mean 0.3125: +-0.1875. From 7: 1 and 0.5: +-0.25.
    expected = torch.tensor([[0.4375, 0.5, 0.5], [-0.4375, -0.25, -0.5]])
    torch.testing.assert_close(result.advantages, expected)


def test_the_weight_of_turns_is_an_option(two_rooms):
    episodes = Gigpo(GigpoConfig(norm="none", gamma=1.0, step_weight=0.0))(two_rooms).advantages
    both = CENTERED(two_rooms).advantages

    actual = Gigpo(GigpoConfig(norm="none", gamma=1.0, step_weight=0.5))(two_rooms).advantages

    torch.testing.assert_close(actual, (episodes + both) / 2)


@pytest.mark.parametrize(
    ("norm", "other"),
    [("std", GroupNorm(GroupNormConfig())), ("none", DrGrpo(Config()))],
)
def test_without_the_comparison_of_turns_it_is_grpo_of_episodes(make_reward_batch, norm, other):
    rows = [[(2, 1.0)], [(1, 0.25)], [(3, 0.0)]]
    batch = with_observations(make_reward_batch(rows, [0, 0, 0]), [[0], [0], [0]])

    torch.testing.assert_close(
        Gigpo(GigpoConfig(norm=norm, step_weight=0.0))(batch).advantages, other(batch).advantages
    )


def test_with_one_turn_the_two_comparisons_are_the_same(make_reward_batch):
    rows = [[(2, 1.0)], [(1, 0.25)], [(3, 0.0)]]
    batch = with_observations(make_reward_batch(rows, [0, 0, 0]), [[0], [0], [0]])

    torch.testing.assert_close(
        Gigpo(GigpoConfig())(batch).advantages,
        2 * GroupNorm(GroupNormConfig())(batch).advantages,
    )


def test_the_episode_is_judged_by_its_whole_reward(make_reward_batch):
    """Also in later turns, unlike the other group baselines; what came of a turn is for the other comparison."""
    batch = make_reward_batch([[(1, 1.0), (1, 0.0)], [(1, 0.0), (1, 0.0)]], group=[0, 0])
    batch = with_observations(batch, [[0, 1], [0, 2]])

    actual = Gigpo(GigpoConfig(norm="none", step_weight=0.0))(batch).advantages

    assert actual.tolist() == [[0.5, 0.5], [-0.5, -0.5]]


@pytest.mark.parametrize("norm", ["std", "none"])
def test_random_episodes_equal_a_loop(make_reward_batch, norm):
    generator = torch.Generator().manual_seed(3)
    group = [0, 0, 1, 0, 1, 1, 0]
    num_turns = [3, 1, 2, 4, 2, 3, 2]
    earned = [torch.randn(n, generator=generator).tolist() for n in num_turns]
    texts = [
        [10 * g + int(torch.randint(0, 3, (1,), generator=generator)) for _ in range(4)]
        for g in group
    ]
    rows = [[(1 + t % 2, r) for t, r in enumerate(row)] for row in earned]
    batch = with_observations(make_reward_batch(rows, group, dtype=torch.float64), texts)

    def normalized(value, members):
        if len(members) == 1:
            return 0.0
        scale = statistics.stdev(members) + 1e-4 if norm == "std" else 1.0
        return (value - statistics.fmean(members)) / scale

    steps = {}
    for i, row in enumerate(earned):
        for t in range(len(row)):
            discounted = sum(0.9 ** (s - t) * row[s] for s in range(t, len(row)))
            steps[i, t] = (texts[i][t], discounted)
    actual = Gigpo(GigpoConfig(norm=norm, gamma=0.9, step_weight=0.7))(batch).advantages

    for i, row in enumerate(earned):
        episodes = [sum(earned[j]) for j in range(7) if group[j] == group[i]]
        of_episode = normalized(sum(row), episodes)
        for t in range(len(row)):
            text, discounted = steps[i, t]
            same = [value for other, value in steps.values() if other == text]
            expected = of_episode + 0.7 * normalized(discounted, same)
            column = int((batch.turn[i] < t).logical_and(batch.action_mask[i]).sum())
            assert actual[i, column].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("value", "size"), [(0.1, 8), (0.3, 7), (0.9, 16), (0.7, 1)])
@pytest.mark.parametrize("gamma", [1.0, 0.95])
def test_equal_episodes_give_no_advantage(make_reward_batch, value, size, gamma):
    batch = make_reward_batch([[(1, 0.0), (2, value)]] * size, group=[0] * size)
    batch = with_observations(batch, [[0, 1]] * size)

    assert (Gigpo(GigpoConfig(gamma=gamma))(batch).advantages == 0).all()


def test_without_discount_the_returns_of_turns_are_the_rewards_to_the_bit():
    rewards = torch.tensor([[0.1, 0.3, 0.7], [0.9, 0.9, 0.9]])

    actual = discounted_by_turn(rewards, torch.tensor([3, 1]), gamma=1.0)

    assert torch.equal(actual, rewards)


def test_the_kl_penalty_is_added_unscaled(two_rooms):
    penalty = torch.full_like(two_rooms.token_rewards, -0.125)
    fined = replace(two_rooms, token_rewards=two_rooms.token_rewards + penalty, kl_penalty=penalty)

    change = CENTERED(fined).advantages - CENTERED(two_rooms).advantages

    torch.testing.assert_close(change, torch.tensor([[-0.375, -0.25, -0.125]] * 2))


def test_rows_that_cancel_within_their_episodes_stay_in_proportion(make_reward_batch):
    """Episodes: std sqrt(2), see ``group_norm``. Four visits of one text: mean 0, squares 4 over n - 1 = 3."""
    rewards = [1.0, -1.0, -1.0, 1.0]
    batch = make_reward_batch([[(1, r)] for r in rewards], [0] * 4, episode=[0, 0, 1, 1])

    actual = Gigpo(GigpoConfig(eps=1e-6))(with_observations(batch, [[0]] * 4)).advantages[:, 0]

    expected = torch.tensor(rewards) * (0.5**0.5 + 0.75**0.5)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=0.0)


def test_an_episode_cut_into_two_rows_at_a_turn_keeps_its_advantages(make_reward_batch):
    """The same visits of the same texts, undiscounted, with the same reward."""
    whole = with_observations(
        make_reward_batch([[(1, 0.0), (1, 1.0)], [(1, 0.0), (1, 0.5)]], [0, 0]), [[0, 7], [0, 7]]
    )
    rows = [[(1, 1.0)], [(1, 1.0)], [(1, 0.5)], [(1, 0.5)]]
    cut = with_observations(
        make_reward_batch(rows, [0] * 4, episode=[0, 0, 1, 1]), [[0], [7], [0], [7]]
    )
    estimator = Gigpo(GigpoConfig(gamma=1.0))

    expected = estimator(whole).advantages.flatten()

    torch.testing.assert_close(estimator(cut).advantages[:, 0], expected)

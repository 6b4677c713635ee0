"""``reinforce``, ``reinforce_baseline`` and ``rloo``."""

from dataclasses import replace

import pytest
import torch

from rlhf_core.contracts import metric_values
from rlhf_core.math import masked_mean, masked_var
from rlhf_plugin_reinforce.components import Reinforce, ReinforceBaseline, Rloo
from rlhf_plugin_reinforce.config import ReinforceBaselineConfig, ReinforceConfig, RlooConfig

NAN = float("nan")

ALL = [
    pytest.param(Reinforce(ReinforceConfig()), id="reinforce"),
    pytest.param(Reinforce(ReinforceConfig(gamma=0.9, whiten="none")), id="reinforce-discounted"),
    pytest.param(ReinforceBaseline(ReinforceBaselineConfig()), id="reinforce_baseline"),
    pytest.param(ReinforceBaseline(ReinforceBaselineConfig(whiten="none")), id="baseline-raw"),
    pytest.param(Rloo(RlooConfig()), id="rloo"),
]
GROUPED = ALL[2:]


def rows_of(advantages, mask):
    """The advantages of each row's action tokens."""
    return [row[kept].tolist() for row, kept in zip(advantages, mask, strict=True)]


def assert_rows(result, batch, expected, tolerance=1e-6):
    actual = rows_of(result.advantages, batch.action_mask)
    assert [len(row) for row in actual] == [len(row) for row in expected]
    for row, numbers in zip(actual, expected, strict=True):
        assert row == pytest.approx(numbers, abs=tolerance)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # Tokens: five of 1, three of 0. Mean 5/8, std sqrt(5/8 * 3/8) = 0.484123: 0.375 / std and -0.625 / std.
        (Reinforce(ReinforceConfig()), [0.774597, -1.290994, 0.774597, 0.774597]),
        # r - mean: 0.5, -0.5, 0, 0; by token the mean is (2 * 0.5 - 3 * 0.5) / 8 = -1/16.
        (
            ReinforceBaseline(ReinforceBaselineConfig(whiten="mean")),
            [0.5625, -0.4375, 0.0625, 0.0625],
        ),
        # ... and the variance (2 * 0.5625^2 + 3 * 0.4375^2 + 3 * 0.0625^2) / 8 = 0.15234375, std 0.390312.
        (
            ReinforceBaseline(ReinforceBaselineConfig()),
            [1.441153, -1.120897, 0.160128, 0.160128],
        ),
        # 1 - 0, 0 - 1, 1 - 1, 1 - 1
        (Rloo(RlooConfig()), [1.0, -1.0, 0.0, 0.0]),
    ],
    ids=["reinforce", "baseline-mean", "baseline", "rloo"],
)
def test_advantages_by_hand(golden_batch, estimator, expected):
    """The numbers are also those of OpenRLHF 0.11.2."""
    lengths = golden_batch.action_mask.sum(dim=1).tolist()

    assert_rows(
        estimator(golden_batch),
        golden_batch,
        [[value] * length for value, length in zip(expected, lengths, strict=True)],
    )


def test_the_discount_is_per_action_token(make_reward_batch):
    batch = make_reward_batch([[(2, 1.0)]], group=[0])

    result = Reinforce(ReinforceConfig(gamma=0.9, whiten="none"))(batch)

    assert_rows(result, batch, [[0.9, 1.0]])


def test_the_kl_penalty_acts_token_by_token(make_reward_batch):
    """The numbers are also those of OpenRLHF 0.11.2 with coefficient 0.1 and a KL of 0.5 at every token."""
    batch = make_reward_batch(
        [[(2, 1.0)], [(3, 0.0)], [(1, 1.0)], [(2, 1.0)]], group=[0, 0, 1, 1], kl_penalty=-0.05
    )

    result = Rloo(RlooConfig())(batch)

    # Each token pays 0.05 for itself and for each token after it.
    assert_rows(result, batch, [[0.9, 0.95], [-1.15, -1.1, -1.05], [-0.05], [-0.1, -0.05]])


def test_the_kl_penalty_is_in_the_return_of_reinforce(make_reward_batch):
    batch = make_reward_batch([[(3, 1.0)]], group=[0], kl_penalty=-0.1)

    result = Reinforce(ReinforceConfig(gamma=0.5, whiten="none"))(batch)

    # 0.9; -0.1 + 0.45 = 0.35; -0.1 + 0.175 = 0.075
    assert_rows(result, batch, [[0.075, 0.35, 0.9]])


def test_reinforce_plus_plus_whitens_returns_with_the_token_level_penalty_inside(make_reward_batch):
    """A loop over the tokens of the whole batch, prompts, turns and lengths mixed."""
    rows = [[(2, 1.0), (1, 0.5)], [(1, 0.25)], [(4, -1.0)]]
    batch = make_reward_batch(rows, [0, 0, 1], kl_penalty=-0.125, dtype=torch.float64)

    result = Reinforce(ReinforceConfig(gamma=0.5))(batch)

    returns = []
    for row, kept in zip(batch.token_rewards, batch.action_mask, strict=True):
        numbers = row[kept].tolist()
        sums = [
            sum(0.5 ** (s - t) * numbers[s] for s in range(t, len(numbers)))
            for t in range(len(numbers))
        ]
        returns.append(sums)
    flat = [value for row in returns for value in row]
    mean = sum(flat) / len(flat)
    std = (sum((value - mean) ** 2 for value in flat) / len(flat)) ** 0.5
    assert_rows(result, batch, [[(value - mean) / std for value in row] for row in returns], 1e-12)


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


def test_whitening_the_mean_keeps_the_scale(golden_batch):
    result = Reinforce(ReinforceConfig(whiten="mean"))(golden_batch)

    # Five tokens of 1 and three of 0: mean 0.625.
    expected = [[0.375] * 2, [-0.625] * 3, [0.375], [0.375] * 2]
    assert_rows(result, golden_batch, expected)


def test_an_episode_that_ended_earlier_is_compared_with_its_last_turn(make_reward_batch):
    batch = make_reward_batch([[(1, 3.0)], [(1, 0.5), (1, 1.0)]], group=[0, 0])

    result = Rloo(RlooConfig())(batch)

    # Turn 0: 3 against 1.5. Turn 1: 1 against the 3 with which the other episode ended.
    assert_rows(result, batch, [[1.5], [-1.5, -2.0]])


@pytest.mark.parametrize("estimator", GROUPED)
def test_with_one_reward_at_the_end_turns_do_not_matter(make_reward_batch, estimator):
    one = make_reward_batch([[(3, 1.0)], [(3, 0.0)], [(2, 0.5)]], group=[0, 0, 0])
    turns = make_reward_batch(
        [[(1, 0.0), (2, 1.0)], [(1, 0.0), (1, 0.0), (1, 0.0)], [(2, 0.5)]], group=[0, 0, 0]
    )

    torch.testing.assert_close(
        estimator(turns).advantages, estimator(one).advantages, atol=0.0, rtol=0.0
    )


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (Rloo(RlooConfig()), [1.0, -0.5, -0.5, 0.5, -0.5]),
        # Means 1/3 and 1/4.
        (
            ReinforceBaseline(ReinforceBaselineConfig(whiten="none")),
            [2 / 3, -1 / 3, -1 / 3, 0.25, -0.25],
        ),
    ],
    ids=["rloo", "reinforce_baseline"],
)
def test_rows_of_one_episode_count_once(make_reward_batch, estimator, expected):
    """An episode in three rows has the weight of an episode in one."""
    rewards, group = [1.0, 0.0, 0.0, 0.5, 0.0], [0, 0, 0, 1, 1]
    rows = [0, 0, 0, 1, 2, 3, 4]
    single = make_reward_batch([[(2, reward)] for reward in rewards], group)
    split = make_reward_batch(
        [[(2, rewards[i])] for i in rows], [group[i] for i in rows], episode=rows
    )

    assert_rows(estimator(single), single, [[value] * 2 for value in expected])
    assert_rows(estimator(split), split, [[expected[i]] * 2 for i in rows])
    assert metric_values(estimator(split).metrics) == pytest.approx(
        metric_values(estimator(single).metrics)
    )


@pytest.mark.parametrize("estimator", GROUPED)
@pytest.mark.parametrize(("value", "size"), [(0.1, 8), (0.3, 7), (0.9, 16)])
def test_equal_rewards_in_a_group_give_no_advantage(make_reward_batch, estimator, value, size):
    batch = make_reward_batch([[(2, value)]] * size, group=[0] * size)

    assert (estimator(batch).advantages == 0).all()


@pytest.mark.parametrize("estimator", GROUPED)
def test_a_group_of_one_gives_no_advantage(make_reward_batch, estimator):
    """Sample filters and failed rewards can leave one sample of a group; starting with one is refused."""
    batch = make_reward_batch([[(2, 0.7)]], group=[0])

    assert (estimator(batch).advantages == 0).all()


@pytest.mark.parametrize("estimator", GROUPED)
def test_adding_a_constant_to_a_group_changes_nothing(make_reward_batch, estimator):
    rewards = [1.0, 0.25, -0.5, 2.0, 0.0]
    group = [0, 0, 0, 1, 1]
    batch = make_reward_batch([[(2, reward)] for reward in rewards], group=group)
    shifted = make_reward_batch(
        [[(2, reward + (8.0 if g else -4.0))] for reward, g in zip(rewards, group, strict=True)],
        group=group,
    )

    torch.testing.assert_close(estimator(shifted).advantages, estimator(batch).advantages)


@pytest.mark.parametrize("estimator", ALL)
def test_padding_changes_nothing(make_reward_batch, estimator):
    rows = [[(2, 1.0), (1, 0.5)], [(1, 0.25)], [(2, 0.0)], [(4, -1.0)]]
    narrow = make_reward_batch(rows, group=[0, 0, 1, 1], kl_penalty=-0.1)
    wide = make_reward_batch(
        rows, group=[0, 0, 1, 1], kl_penalty=-0.1, padding=NAN, extra_columns=3
    )

    actual = estimator(wide).advantages

    assert (actual[~wide.action_mask] == 0).all()
    torch.testing.assert_close(actual[:, :4], estimator(narrow).advantages)


@pytest.mark.parametrize("estimator", ALL)
def test_the_order_of_rows_does_not_matter(make_reward_batch, estimator):
    rows = [[(2, 1.0), (1, 0.5)], [(1, 0.25)], [(2, 0.0)], [(3, -1.0)], [(3, 0.5)]]
    group, episode, order = [0, 0, 1, 1, 1], [0, 1, 2, 3, 3], [3, 0, 4, 2, 1]

    def pick(values):
        return [values[i] for i in order]

    whole = estimator(make_reward_batch(rows, group, episode))
    shuffled = estimator(make_reward_batch(pick(rows), pick(group), pick(episode)))

    torch.testing.assert_close(shuffled.advantages, whole.advantages[torch.tensor(order)])


@pytest.mark.parametrize("estimator", ALL)
def test_the_batch_is_left_as_it_is(make_reward_batch, estimator):
    batch = make_reward_batch([[(2, 1.0)], [(1, 0.0)]], group=[0, 0], kl_penalty=-0.1)
    copy = replace(batch, token_rewards=batch.token_rewards.clone(), rewards=batch.rewards.clone())

    estimator(batch)

    assert torch.equal(batch.token_rewards, copy.token_rewards)
    assert torch.equal(batch.rewards, copy.rewards)


@pytest.mark.parametrize("estimator", ALL)
def test_large_rewards_stay_finite(make_reward_batch, estimator):
    batch = make_reward_batch([[(2, 1e30)], [(1, -1e30)]], group=[0, 0])

    assert torch.isfinite(estimator(batch).advantages).all()


@pytest.mark.parametrize(
    "estimator", [Reinforce(ReinforceConfig()), ReinforceBaseline(ReinforceBaselineConfig())]
)
def test_whitened_advantages_have_mean_0_and_variance_1_over_tokens(make_reward_batch, estimator):
    batch = make_reward_batch(
        [[(2, 1.0), (1, 0.5)], [(1, 0.25)], [(2, 0.0)], [(4, -1.0)]], group=[0, 0, 1, 1]
    )

    advantages = estimator(batch).advantages

    assert masked_mean(advantages, batch.action_mask).item() == pytest.approx(0.0, abs=1e-6)
    assert masked_var(advantages, batch.action_mask).item() == pytest.approx(1.0, abs=1e-5)


def test_rloo_is_the_group_baseline_times_n_over_n_minus_1(make_reward_batch):
    batch = make_reward_batch([[(1, r)] for r in (1.0, 0.0, 0.5, 2.0)], group=[0] * 4)

    loo = Rloo(RlooConfig())(batch).advantages
    baseline = ReinforceBaseline(ReinforceBaselineConfig(whiten="none"))(batch).advantages

    torch.testing.assert_close(loo, baseline * 4 / 3)


def test_groups_of_different_sizes_equal_a_loop(make_reward_batch):
    rewards = [1.0, 0.5, -1.0, 0.25, 2.0, 0.0, 0.75]
    group = [0, 1, 0, 1, 0, 2, 2]
    batch = make_reward_batch([[(1, r)] for r in rewards], group=group)

    loo, centered = [], []
    for i, reward in enumerate(rewards):
        members = [r for r, g in zip(rewards, group, strict=True) if g == group[i]]
        loo.append([reward - (sum(members) - reward) / (len(members) - 1)])
        centered.append([reward - sum(members) / len(members)])

    assert_rows(Rloo(RlooConfig())(batch), batch, loo)
    raw = ReinforceBaseline(ReinforceBaselineConfig(whiten="none"))
    assert_rows(raw(batch), batch, centered)

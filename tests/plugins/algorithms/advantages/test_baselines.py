"""``reinforce``, ``reinforce_baseline`` and ``rloo``."""

from dataclasses import replace

import pytest
import torch

from rlhf_core import Config
from rlhf_core.contracts import metric_values
from rlhf_core.math import masked_mean, masked_var
from rlhf_plugin_algorithms.advantages.reinforce import Reinforce, ReinforceConfig
from rlhf_plugin_algorithms.advantages.reinforce_baseline import (
    ReinforceBaseline,
    ReinforceBaselineConfig,
)
from rlhf_plugin_algorithms.advantages.rloo import Rloo

NAN = float("nan")

ALL = [
    pytest.param(Reinforce(ReinforceConfig()), id="reinforce"),
    pytest.param(Reinforce(ReinforceConfig(gamma=0.9, whiten="none")), id="reinforce-discounted"),
    pytest.param(ReinforceBaseline(ReinforceBaselineConfig()), id="reinforce_baseline"),
    pytest.param(ReinforceBaseline(ReinforceBaselineConfig(whiten="none")), id="baseline-raw"),
    pytest.param(Rloo(Config()), id="rloo"),
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
        (Rloo(Config()), [1.0, -1.0, 0.0, 0.0]),
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
        (Rloo(Config()), [1.0, -0.5, -0.5, 0.5, -0.5]),
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

"""``gdpo``: each reward normalized within its group by itself."""

import statistics
from dataclasses import replace

import pytest
import torch

from rlhf_core.contracts import metric_values
from rlhf_core.errors import ConfigError
from rlhf_core.math import masked_mean, masked_var, whiten
from rlhf_plugin_algorithms.advantages.gdpo import Gdpo, GdpoConfig, decoupled_advantages
from rlhf_plugin_algorithms.advantages.group_norm import GroupNorm, GroupNormConfig
from rlhf_testing.errors import has_code

NAN = float("nan")
RAW = Gdpo(GdpoConfig(whiten="none"))


def batch_of(make_reward_batch, named, group, weights=None, **options):
    """One token per sample; the reward is the weighted sum."""
    weights = weights or dict.fromkeys(named, 1.0)
    columns = {name: torch.tensor(values) for name, values in named.items()}
    total = sum(weights[name] * column.nan_to_num() for name, column in columns.items())
    batch = make_reward_batch([[(1, r)] for r in total.tolist()], group, **options)
    return replace(batch, rewards_by_name=columns, reward_weights=weights)


def test_advantages_by_hand(make_reward_batch):
    """GRPO would give the two samples that earned 1 the same, although they have different merits."""
    batch = batch_of(
        make_reward_batch, {"a": [1.0, 0.0, 0.0, 0.0], "b": [0.0, 1.0, 1.0, 0.0]}, [0] * 4
    )

    actual = RAW(batch).advantages[:, 0]

    # a: mean 1/4, std 1/2: 1.5 and -0.5. b: mean 1/2, std sqrt(1/3) = 0.577350: +-0.866025.
    expected = torch.tensor([1.5 - 0.866025, -0.5 + 0.866025, -0.5 + 0.866025, -0.5 - 0.866025])
    torch.testing.assert_close(actual, expected, atol=1e-3, rtol=0.0)


def test_one_reward_is_grpo(make_reward_batch):
    batch = batch_of(
        make_reward_batch, {"a": [1.0, 0.5, -1.0, 0.25, 2.0, 0.0]}, group=[0, 1, 0, 1, 0, 1]
    )

    torch.testing.assert_close(
        RAW(batch).advantages, GroupNorm(GroupNormConfig())(batch).advantages
    )


def test_weights_weigh_what_was_normalized(make_reward_batch):
    named, group = {"a": [1.0, 0.0, 0.5], "b": [0.0, 1.0, 4.0]}, [0] * 3
    alone = {
        name: RAW(batch_of(make_reward_batch, {name: values}, group)).advantages
        for name, values in named.items()
    }

    actual = RAW(batch_of(make_reward_batch, named, group, {"a": 2.0, "b": -0.5})).advantages

    torch.testing.assert_close(actual, 2 * alone["a"] - 0.5 * alone["b"])


def test_the_scale_of_a_single_reward_does_not_matter(make_reward_batch):
    a, b = [1.0, 0.0, 0.5], [0.0, 1.0, 0.25]
    plain = batch_of(make_reward_batch, {"a": a, "b": b}, [0] * 3)
    scaled = batch_of(make_reward_batch, {"a": a, "b": [100 * value for value in b]}, [0] * 3)

    torch.testing.assert_close(RAW(scaled).advantages, RAW(plain).advantages, atol=1e-3, rtol=1e-3)


def test_samples_without_a_reward_are_left_out_of_its_statistics(make_reward_batch):
    a, b = [1.0, 0.0, 0.5, 0.25], [NAN, 3.0, NAN, 1.0]

    actual = RAW(batch_of(make_reward_batch, {"a": a, "b": b}, [0] * 4)).advantages[:, 0]

    def normalized(values, value):
        return (value - statistics.fmean(values)) / (statistics.stdev(values) + 1e-4)

    of_b = [0.0, normalized([3.0, 1.0], 3.0), 0.0, normalized([3.0, 1.0], 1.0)]
    expected = [normalized(a, value) + other for value, other in zip(a, of_b, strict=True)]
    assert actual.tolist() == pytest.approx(expected)


def test_a_reward_that_no_sample_has_gives_nothing(make_reward_batch):
    a = {"a": [1.0, 0.0]}
    nobody = {"a": [1.0, 0.0], "b": [NAN, NAN]}

    torch.testing.assert_close(
        RAW(batch_of(make_reward_batch, nobody, [0, 0])).advantages,
        RAW(batch_of(make_reward_batch, a, [0, 0])).advantages,
    )


def test_numbers_of_groups_and_episodes_may_be_missing_among_those_that_have_the_reward():
    """Episode 0 and group 0 have no such reward; nothing may be counted in their place."""
    rewards = torch.tensor([NAN, NAN, 1.0, 0.0])
    group, episode = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 2, 3])

    actual = decoupled_advantages({"a": rewards}, {"a": 1.0}, group, episode, eps=1e-6)

    expected = torch.tensor([0.0, 0.0, 0.5**0.5, -(0.5**0.5)], dtype=torch.float64)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize(("value", "size"), [(0.1, 8), (0.3, 7), (0.9, 16), (0.7, 1)])
def test_equal_rewards_give_no_advantage(make_reward_batch, value, size):
    batch = batch_of(make_reward_batch, {"a": [value] * size, "b": [0.3] * size}, [0] * size)

    assert (RAW(batch).advantages == 0).all()
    assert (Gdpo(GdpoConfig())(batch).advantages == 0).all()


def test_the_sum_is_whitened_over_all_action_tokens(make_reward_batch):
    rows = [[(3, 1.0)], [(1, 0.0)], [(2, 0.5)], [(2, 0.0)]]
    batch = make_reward_batch(rows, [0, 0, 1, 1], kl_penalty=-0.125)
    batch = replace(batch, rewards_by_name={"a": batch.rewards}, reward_weights={"a": 1.0})

    actual = Gdpo(GdpoConfig())(batch).advantages

    mask = batch.action_mask
    assert masked_mean(actual, mask).item() == pytest.approx(0.0, abs=1e-6)
    assert masked_var(actual, mask).item() == pytest.approx(1.0, abs=1e-5)
    torch.testing.assert_close(actual, whiten(RAW(batch).advantages, mask))


def test_rows_of_one_episode_count_once(make_reward_batch):
    a, rows = [1.0, 0.0, 0.5], [0, 0, 0, 1, 2]
    single = batch_of(make_reward_batch, {"a": a}, [0] * 3)
    split = batch_of(make_reward_batch, {"a": [a[i] for i in rows]}, [0] * 5, episode=rows)

    torch.testing.assert_close(RAW(split).advantages, RAW(single).advantages[torch.tensor(rows)])


def test_without_a_named_reward_it_is_an_error(make_reward_batch):
    batch = make_reward_batch([[(1, 1.0)], [(1, 0.0)]], group=[0, 0])

    with pytest.raises(ConfigError, check=has_code("config/no-named-rewards")):
        RAW(batch)


def test_what_no_named_reward_accounts_for_is_reported(make_reward_batch):
    batch = batch_of(make_reward_batch, {"a": [1.0, 0.0]}, [0, 0], {"a": 2.0})
    # A turn took 0.5 from the first sample.
    with_turn = replace(batch, rewards=batch.rewards - torch.tensor([0.5, 0.0]))

    assert metric_values(RAW(batch).metrics) == {"gdpo/reward_unseen": 0.0}
    assert metric_values(RAW(with_turn).metrics) == {"gdpo/reward_unseen": 0.25}


def test_what_is_unseen_counts_episodes(make_reward_batch):
    """The episode with a turn's reward has three rows of four; by episodes it is one of two."""
    rows = [0, 0, 0, 1]
    batch = batch_of(make_reward_batch, {"a": [1.0, 1.0, 1.0, 0.0]}, [0] * 4, episode=rows)
    with_turn = replace(batch, rewards=batch.rewards - torch.tensor([0.5, 0.5, 0.5, 0.0]))

    (metric,) = RAW(with_turn).metrics.values()

    assert (float(metric.total), float(metric.count)) == (0.5, 2.0)

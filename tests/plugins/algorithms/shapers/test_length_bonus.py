"""Kimi k1.5's length reward, and a bonus by token."""

import numpy as np

from rlhf_plugin_algorithms.shapers.length_bonus import (
    LengthBonus,
    LengthBonusConfig,
    group_length_bonus,
)


def bonus(batch, info, **options):
    result, _ = LengthBonus(LengthBonusConfig(**options)).shape(batch, info)
    return result.reward.astype(np.float64) - batch.reward


def slow_bonus(lengths, correct, group):
    result = []
    for length, right, own in zip(lengths, correct, group, strict=True):
        others = [n for n, g in zip(lengths, group, strict=True) if g == own]
        if min(others) == max(others):
            result.append(0.0)
            continue
        value = 0.5 - (length - min(others)) / (max(others) - min(others))
        result.append(value if right else min(0.0, value))
    return result


def test_the_shortest_gains_half_and_the_longest_loses_half(Row, columns, info):
    batch = columns(*(Row(reward=1.0, turns=(length,)) for length in (2, 4, 10)))

    # (4 - 2) / (10 - 2) = 1/4, and 1/2 - 1/4 = 1/4.
    np.testing.assert_allclose(bonus(batch, info), [0.5, 0.25, -0.5], atol=1e-7)
    np.testing.assert_allclose(bonus(batch, info, weight=0.2), [0.1, 0.05, -0.1], atol=1e-7)


def test_a_wrong_answer_gains_nothing_by_being_short(Row, columns, info):
    batch = columns(
        Row(reward=0.0, turns=(2,)), Row(reward=1.0, turns=(4,)), Row(reward=0.0, turns=(10,))
    )

    np.testing.assert_allclose(bonus(batch, info), [0.0, 0.25, -0.5], atol=1e-7)
    np.testing.assert_allclose(bonus(batch, info, only_correct=True), [0.0, 0.25, 0.0], atol=1e-7)


def test_it_equals_a_slow_loop_whatever_the_order_of_rows():
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 12, size=40)
    correct = generator.random(40) < 0.5
    group = generator.permutation(np.repeat(np.arange(8), 5))

    actual = group_length_bonus(lengths, correct, group)

    np.testing.assert_allclose(actual, slow_bonus(lengths, correct, group), rtol=1e-12)


def test_equal_lengths_and_a_group_of_one_get_nothing(Row, columns, info):
    batch = columns(
        Row(reward=1.0, turns=(4,)),
        Row(reward=0.0, turns=(2, 2)),
        Row(reward=1.0, turns=(9,), prompt=1),
    )

    assert bonus(batch, info).tolist() == [0.0, 0.0, 0.0]


def test_by_token_it_is_the_same_for_each(Row, columns, info):
    batch = columns(
        Row(reward=1.0, turns=(4,)), Row(reward=0.0, turns=(5, 5)), Row(reward=1.0, turns=(9,))
    )

    by_token = bonus(batch, info, mode="token", per_token=-0.01)
    of_correct = bonus(batch, info, mode="token", per_token=0.01, only_correct=True)

    np.testing.assert_allclose(by_token, [-0.04, -0.1, -0.09], atol=1e-7)
    np.testing.assert_allclose(of_correct, [0.04, 0.0, 0.09], atol=1e-7)


def test_correct_is_by_what_was_earned_in_all(Row, columns, info):
    batch = columns(
        Row(reward=0.0, turns=(2,), turn_rewards=(1.0,)),
        Row(reward=0.5, turns=(4,)),
        Row(reward=1.0, turns=(4,)),
    )

    gained = bonus(batch, info, only_correct=True, correct_above=0.5)

    np.testing.assert_allclose(gained, [0.5, 0.0, -0.5], atol=1e-7)


def test_the_sequences_of_an_episode_are_measured_together_and_get_the_same(Row, columns, info):
    batch = columns(
        Row(reward=1.0, turns=(3,), sample=0, segment=0),
        Row(reward=1.0, turns=(4,), sample=0, segment=1),
        Row(reward=1.0, turns=(5,), sample=1),
    )

    np.testing.assert_allclose(bonus(batch, info), [-0.5, -0.5, 0.5], atol=1e-7)


def test_comparing_lengths_needs_a_group():
    assert LengthBonusConfig().needed_by_options() == {"group>=2"}
    assert LengthBonusConfig(mode="token").needed_by_options() == frozenset()

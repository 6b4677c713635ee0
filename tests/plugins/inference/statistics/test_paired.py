"""Paired comparison: by hand, exact against a slow loop, invariances, and its rate of false alarms."""

import itertools
import math

import numpy as np
import pytest

from rlhf_plugin_inference.statistics.paired import (
    compare_tasks,
    sign_flip_p_value,
    sign_test_p_value,
)


def test_a_sign_flip_test_by_hand():
    # Differences 1, 2, 3: of 8 choices of signs only +++ and --- reach 6.
    assert sign_flip_p_value(np.array([1.0, 2, 3]), seed=0) == 2 / 8
    # Differences 1, 1, -1: sum 1; |sum| is 3 twice and 1 six times.
    assert sign_flip_p_value(np.array([1.0, 1, -1]), seed=0) == 1.0


def test_a_sign_flip_test_equals_a_slow_loop_over_all_signs():
    differences = np.random.default_rng(0).normal(0.3, size=9)
    observed = abs(differences.sum())
    hits = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= observed - 1e-12
        for signs in itertools.product((-1, 1), repeat=9)
    ]

    assert sign_flip_p_value(differences, seed=0) == np.mean(hits)


def test_many_tasks_are_sampled_with_the_seed_and_agree_with_the_normal_limit():
    differences = np.random.default_rng(2).normal(0.15, size=200)

    p = sign_flip_p_value(differences, seed=1)

    z = differences.sum() / math.sqrt((differences**2).sum())
    assert p == pytest.approx(math.erfc(abs(z) / math.sqrt(2)), abs=0.01)
    assert p == sign_flip_p_value(differences, seed=1)
    assert sign_flip_p_value(differences + 5.0, seed=1) == 1 / 20_001


def test_tasks_without_a_difference_say_nothing():
    differences = np.array([1.0, 2, 3])

    assert sign_flip_p_value(np.zeros(5), seed=0) == 1.0
    padded = np.concatenate([differences, np.zeros(30)])
    assert sign_flip_p_value(padded, seed=0) == sign_flip_p_value(differences, seed=0)


@pytest.mark.parametrize(
    ("wins", "losses", "expected"),
    [
        (0, 0, 1.0),
        (5, 0, 2 / 32),
        (1, 5, 2 * (1 + 6) / 64),  # 2 (C(6,0) + C(6,1)) / 2^6
        (3, 3, 1.0),
    ],
)
def test_mcnemars_exact_test_by_hand(wins, losses, expected):
    assert sign_test_p_value(wins, losses) == expected
    assert sign_test_p_value(losses, wins) == expected


def test_a_comparison_by_hand():
    # Differences 1, 0, 1, -1/2: mean 3/8, variance (25 + 9 + 25 + 49) / 64 / 3 = 36 / 64.
    first, second = np.array([0.0, 1.0, 0.0, 0.5]), np.array([1.0, 1.0, 1.0, 0.0])

    found = compare_tasks(first, second, level=0.95, seed=0)

    assert (found.wins, found.losses, found.ties) == (2, 1, 1)
    assert found.difference.value == 3 / 8
    assert found.difference.standard_error == pytest.approx(math.sqrt(36 / 64 / 4))
    # Signs of 1, 1, 1/2: sums 2.5, 1.5, 0.5 and 0.5 twice each with either sign; 1.5 is reached by four of eight.
    assert found.p_value == 4 / 8
    assert found.sign_p_value == 1.0


def test_the_models_may_change_places():
    generator = np.random.default_rng(5)
    first, second = generator.random(12), generator.random(12)

    there = compare_tasks(first, second, level=0.9, seed=0)
    back = compare_tasks(second, first, level=0.9, seed=0)

    assert back.difference.value == -there.difference.value
    assert (back.wins, back.losses) == (there.losses, there.wins)
    assert back.p_value == there.p_value


def test_means_that_differ_by_rounding_alone_are_equal():
    found = compare_tasks(np.array([0.1 + 0.2]), np.array([0.3]), level=0.95, seed=0)

    assert (found.ties, found.p_value) == (1, 1.0)


def test_equal_models_are_told_apart_no_more_often_than_the_level_says():
    """500 pairs of equal models: at most 5 in 100 have p <= 0.05, within three standard errors of 0.0097."""
    generator = np.random.default_rng(6)
    alarms = 0
    for _ in range(500):
        own = generator.beta(0.5, 0.5, size=12)
        first, second = (generator.binomial(4, own) / 4 for _ in range(2))
        alarms += compare_tasks(first, second, level=0.95, seed=0).p_value <= 0.05

    assert alarms <= 40

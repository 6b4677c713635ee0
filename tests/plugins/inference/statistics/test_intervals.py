"""Estimates with intervals: by hand, in their limits, by slow loops, and by how often they hold the truth."""

import math

import numpy as np
import pytest

from rlhf_plugin_inference.statistics.intervals import (
    clustered_standard_error,
    effective_trials,
    mean_estimate,
    rate_estimate,
    wilson_interval,
)


def test_a_clustered_standard_error_by_hand():
    # Tasks {0, 1}, {1, 1}, {0, 0}: mean 1/2, sums of deviations 0, 1, -1, so
    # SE^2 = 3/2 * (0 + 1 + 1) / 36 = 1/12.
    values, tasks = np.array([0.0, 1, 1, 1, 0, 0]), np.array([0, 0, 1, 1, 2, 2])

    assert clustered_standard_error(values, tasks) == pytest.approx(math.sqrt(1 / 12))


def test_one_episode_a_task_gives_the_usual_standard_error():
    values = np.array([0.3, 0.1, 0.9, 0.4])

    expected = values.std(ddof=1) / 2.0
    assert clustered_standard_error(values, np.arange(4)) == pytest.approx(expected)


def test_equally_many_episodes_give_the_error_of_the_tasks_means():
    values = np.random.default_rng(0).normal(size=(6, 5))

    actual = clustered_standard_error(values.ravel(), np.repeat(np.arange(6), 5))

    assert actual == pytest.approx(values.mean(axis=1).std(ddof=1) / math.sqrt(6))


def test_repeating_every_episode_makes_nothing_more_certain():
    values, tasks = np.array([0.0, 1, 1, 0.5]), np.array([4, 4, 7, 9])

    once = clustered_standard_error(values, tasks)

    assert clustered_standard_error(np.tile(values, 10), np.tile(tasks, 10)) == pytest.approx(once)


def test_a_clustered_standard_error_equals_a_slow_loop_over_pairs():
    """SE^2 = C / (C - 1) / N^2 * sum of (x_i - mean)(x_j - mean) over the pairs of one task."""
    generator = np.random.default_rng(1)
    values, tasks = generator.normal(size=17), generator.integers(5, size=17)
    mean, total = sum(values) / 17, 0.0
    for i in range(17):
        for j in range(17):
            if tasks[i] == tasks[j]:
                total += (values[i] - mean) * (values[j] - mean)

    expected = math.sqrt(5 / 4 * total) / 17
    assert clustered_standard_error(values, tasks) == pytest.approx(expected)


def test_a_mean_by_hand():
    # Means of 3 tasks 0, 1, 2: mean 1, SE = 1 / sqrt(3), t_{2, 0.975} = 4.302653.
    estimate = mean_estimate(np.array([0.0, 1, 2]), np.arange(3), 0.95)

    half = 4.302653 / math.sqrt(3)
    assert (estimate.value, estimate.tasks) == (1.0, 3)
    assert (estimate.low, estimate.high) == pytest.approx((1 - half, 1 + half), abs=1e-6)


def test_a_single_task_says_nothing_about_others():
    estimate = mean_estimate(np.array([0.0, 1.0]), np.array([3, 3]), 0.95)

    assert (estimate.value, estimate.low, estimate.standard_error) == (0.5, None, None)


def test_wilsons_interval_by_hand():
    # 8 of 10, z = 1.959964, z^2 = 3.841459: middle (0.8 + 0.192073) / 1.384146 = 0.716740, half
    # sqrt(3.841459 * (0.016 + 0.00960365)) / 1.384146 = 0.313619 / 1.384146 = 0.226579.
    low, high = wilson_interval(0.8, 10, 0.95)

    assert (low, high) == pytest.approx((0.490161, 0.943318), abs=2e-5)


@pytest.mark.parametrize(("rate", "trials"), [(0.3, 20), (0.05, 40), (0.98, 50)])
def test_wilsons_ends_are_where_the_score_test_just_accepts(rate, trials):
    for end in wilson_interval(rate, trials, 0.9):
        z = abs(rate - end) / math.sqrt(end * (1 - end) / trials)
        assert z == pytest.approx(1.6448536, abs=1e-6)


def test_wilsons_interval_does_not_collapse_at_the_ends():
    # 20 of 20: from 1 / (1 + z^2 / 20) = 0.838875 to 1; 0 of 20 mirrors it.
    low, high = wilson_interval(1.0, 20, 0.95)

    assert (low, high) == pytest.approx((0.838875, 1.0), abs=1e-6)
    assert wilson_interval(0.0, 20, 0.95) == pytest.approx((0.0, 1 - low), abs=1e-12)


def test_with_one_episode_a_task_a_rate_has_wilsons_own_interval():
    estimate = rate_estimate(np.array([1.0] * 8 + [0.0] * 2), 1, 0.95)

    assert (estimate.low, estimate.high) == wilson_interval(0.8, 10, 0.95)


def test_effective_trials_by_hand():
    # Rates 0, 1/2, 1/2, 1 of 2 episodes: p = 1/2, variance 1/8, so 4 * (1/4) / (1/8) = 8 = P G trials, times
    # (t_7 / t_3)^2 = (2.364624 / 3.182446)^2.
    rates = np.array([0.0, 0.5, 0.5, 1.0])

    expected = 8 * (2.364624 / 3.182446) ** 2
    assert effective_trials(rates, 2, 0.95) == pytest.approx(expected, abs=1e-5)


def test_episodes_that_all_end_alike_are_worth_one_a_task():
    rates = np.array([0.0, 1.0] * 20)

    # The variance says P; the factor says that P = 40 tasks know it less well than 400 episodes would.
    assert 0.9 * 40 < effective_trials(rates, 10, 0.95) < 40
    assert effective_trials(np.ones(40), 10, 0.95) == 40
    assert effective_trials(np.full(40, 0.5), 10, 0.95) == pytest.approx(400, rel=0.1)


COVERED = [
    # tasks, episodes, and the Beta distribution of the tasks' own rates
    (30, 1, (2.0, 2.0)),
    (30, 4, (0.5, 0.5)),
    (100, 8, (0.3, 3.0)),
]


@pytest.mark.parametrize(("num_tasks", "episodes", "shape"), COVERED)
def test_intervals_hold_the_truth_about_95_times_in_100(num_tasks, episodes, shape):
    """1000 simulated evaluations: a share between 0.93 and 0.97 is 0.95 within three standard errors of 0.0069."""
    generator = np.random.default_rng(3)
    truth = shape[0] / sum(shape)
    tasks = np.repeat(np.arange(num_tasks), episodes)
    held = np.zeros(2)
    for _ in range(1000):
        own = generator.beta(*shape, size=num_tasks)
        passed = generator.random((num_tasks, episodes)) < own[:, None]
        rate = rate_estimate(passed.mean(axis=1), episodes, 0.95)
        mean = mean_estimate(passed.ravel().astype(float), tasks, 0.95)
        held += [each.low <= truth <= each.high for each in (rate, mean)]

    assert 930 <= held[0] <= 970, held
    # Student's interval of a skewed 0 or 1 is the worse one, which is why rates have Wilson's.
    assert 900 <= held[1] <= 970, held


def test_counting_episodes_as_if_they_were_independent_holds_the_truth_less_often():
    """The mistake that clustering avoids, with 20 tasks whose 10 episodes nearly agree."""
    generator = np.random.default_rng(4)
    held = {"clustered": 0, "independent": 0}
    for _ in range(300):
        own = generator.beta(0.2, 0.2, size=20)
        passed = generator.random((20, 10)) < own[:, None]
        rates = passed.mean(axis=1)
        clustered = rate_estimate(rates, 10, 0.95)
        held["clustered"] += clustered.low <= 0.5 <= clustered.high
        low, high = wilson_interval(float(rates.mean()), 200, 0.95)
        held["independent"] += low <= 0.5 <= high

    assert held["clustered"] > 270
    assert held["independent"] < 200

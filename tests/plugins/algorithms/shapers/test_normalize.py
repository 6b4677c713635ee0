"""Running mean and standard deviation."""

import json
import math

import numpy as np
import pytest

from rlhf_core import CheckpointError
from rlhf_plugin_algorithms.shapers.normalize import Moments, Normalize, NormalizeConfig
from rlhf_testing.errors import has_code

EPS = 1e-4


def welford(values):
    """One value at a time."""
    count, mean, squares = 0, 0.0, 0.0
    for value in values:
        count += 1
        apart = value - mean
        mean += apart / count
        squares += apart * (value - mean)
    return count, mean, squares


def test_the_first_batch_by_hand(Row, columns, info):
    batch = columns(*(Row(reward=reward) for reward in (1.0, 3.0, 5.0, 7.0)))

    result, metrics = Normalize(NormalizeConfig()).shape(batch, info)

    # mean 4, deviations -3, -1, 1, 3: variance (9 + 1 + 1 + 9) / 4 = 5
    expected = np.array([-3, -1, 1, 3]) / (math.sqrt(5) + EPS)
    np.testing.assert_allclose(result.reward, expected, rtol=1e-6)
    assert metrics["normalize/mean"].value() == 4.0
    assert metrics["normalize/std"].value() == pytest.approx(math.sqrt(5))


def test_later_batches_use_all_that_was_seen(Row, columns, info):
    shaper = Normalize(NormalizeConfig())
    shaper.shape(columns(Row(reward=0.0), Row(reward=2.0)), info)

    result, _ = shaper.shape(columns(Row(reward=4.0)), info)

    # Seen 0, 2, 4: mean 2, variance 8 / 3.
    assert result.reward[0] == pytest.approx(2 / (math.sqrt(8 / 3) + EPS), rel=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_moments_equal_a_slow_loop_however_the_values_are_cut(offset):
    values = np.random.default_rng(0).normal(size=57) + offset
    expected = welford(values)

    for cuts in ([], [1], [10, 30], [5, 5, 56]):
        seen = Moments()
        for part in np.split(values, cuts):
            seen = seen.updated(part)
        assert seen.count == 57
        assert seen.mean == pytest.approx(expected[1], rel=1e-12)
        assert seen.squares == pytest.approx(expected[2], rel=1e-8)
        assert seen.std == pytest.approx(values.std(), rel=1e-8)


@pytest.mark.parametrize("value", [0.1, -0.3, 1e6])
def test_equal_rewards_become_exactly_0(Row, columns, info, value):
    shaper = Normalize(NormalizeConfig())

    for size in (8, 7, 1):
        result, metrics = shaper.shape(columns(*(Row(reward=value) for _ in range(size))), info)
        assert result.reward.tolist() == [0.0] * size
        assert metrics["normalize/std"].value() == 0.0


def test_scaling_and_shifting_all_rewards_changes_nothing(Row, columns, info):
    rewards = np.array([0.5, -1.0, 2.0, 0.25])
    plain, _ = Normalize(NormalizeConfig()).shape(columns(*(Row(reward=r) for r in rewards)), info)
    other, _ = Normalize(NormalizeConfig()).shape(
        columns(*(Row(reward=1e3 * r + 50) for r in rewards)), info
    )

    # Up to eps, which is 1e-4 of a standard deviation near 1.
    np.testing.assert_allclose(other.reward, plain.reward, rtol=2e-4)


def test_the_total_is_normalized_and_turns_are_scaled_with_it(Row, columns, info):
    batch = columns(
        Row(reward=1.0, turns=(2, 1), turn_rewards=(1.0, 1.0)),  # 3 in all
        Row(reward=0.0, turns=(2, 1), turn_rewards=(0.0, 1.0)),  # 1 in all
    )

    result, _ = Normalize(NormalizeConfig(of="total")).shape(batch, info)

    # Mean 2, standard deviation 1.
    np.testing.assert_allclose(result.total_reward, [1 / (1 + EPS), -1 / (1 + EPS)], rtol=1e-6)
    np.testing.assert_allclose(result.turn_rewards, batch.turn_rewards / (1 + EPS), rtol=1e-6)


def test_the_score_alone_is_normalized_and_turns_stay(Row, columns, info):
    batch = columns(
        Row(reward=3.0, turns=(2,), turn_rewards=(7.0,)),
        Row(reward=1.0, turns=(2,), turn_rewards=(0.5,)),
    )

    result, _ = Normalize(NormalizeConfig(of="episode")).shape(batch, info)

    np.testing.assert_allclose(result.reward, [1 / (1 + EPS), -1 / (1 + EPS)], rtol=1e-6)
    np.testing.assert_array_equal(result.turn_rewards, batch.turn_rewards)


def test_an_episode_of_several_sequences_counts_once(Row, columns, info):
    batch = columns(
        Row(reward=1.0, sample=0, segment=0),
        Row(reward=1.0, sample=0, segment=1),
        Row(reward=1.0, sample=0, segment=2),
        Row(reward=3.0, sample=1),
    )

    _, metrics = Normalize(NormalizeConfig()).shape(batch, info)

    assert metrics["normalize/mean"].value() == 2.0


def test_saved_and_loaded_it_goes_on_to_the_bit(Row, columns, info):
    generator = np.random.default_rng(1)
    batches = [columns(*(Row(reward=r) for r in generator.normal(size=5))) for _ in range(4)]
    straight, before = Normalize(NormalizeConfig()), Normalize(NormalizeConfig())
    for batch in batches[:2]:
        straight.shape(batch, info)
        before.shape(batch, info)
    resumed = Normalize(NormalizeConfig())
    resumed.load_state_dict(json.loads(json.dumps(before.state_dict())))

    for batch in batches[2:]:
        expected, actual = straight.shape(batch, info)[0], resumed.shape(batch, info)[0]
        np.testing.assert_array_equal(actual.reward, expected.reward)
    assert resumed.state_dict() == straight.state_dict()


def test_the_state_of_another_shaper_is_refused():
    with pytest.raises(
        CheckpointError, match=r"none.*reward\.shapers", check=has_code("checkpoint/other-shaper")
    ):
        Normalize(NormalizeConfig()).load_state_dict({})


def test_sequences_that_cancel_within_their_episodes_are_not_blown_up(Row, columns, info):
    """Both episodes have the mean 0. Rows weigh 1/2 each: variance 4 * 1/2 / 2 = 1."""
    batch = columns(
        Row(reward=1.0, sample=0, segment=0),
        Row(reward=-1.0, sample=0, segment=1),
        Row(reward=-1.0, sample=1, segment=0),
        Row(reward=1.0, sample=1, segment=1),
    )

    shaped, metrics = Normalize(NormalizeConfig()).shape(batch, info)

    assert metrics["normalize/std"].value() == 1.0
    np.testing.assert_allclose(shaped.reward, np.array([1, -1, -1, 1]) / (1 + EPS), rtol=1e-6)


def test_splitting_an_episode_into_equal_sequences_changes_no_reward(Row, columns, info):
    rewards, rows = [0.3, -1.2, 2.0], [0, 0, 0, 1, 2, 2]
    whole = columns(*(Row(reward=reward) for reward in rewards))
    split = columns(
        *(Row(reward=rewards[i], sample=i, segment=rows[:n].count(i)) for n, i in enumerate(rows))
    )

    expected = Normalize(NormalizeConfig()).shape(whole, info)[0].reward[rows]

    actual = Normalize(NormalizeConfig()).shape(split, info)[0].reward
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_parts_of_the_score_are_scaled_and_the_mean_comes_off_at_the_end(Row, columns, info):
    batch = columns(
        Row(reward=3.0, turns=(4,), step_rewards=((0, 1.0), (2, 2.0))),
        Row(reward=1.0, turns=(2,), step_rewards=((0, 0.5), (1, 0.5))),
    )

    result, _ = Normalize(NormalizeConfig()).shape(batch, info)

    # Mean 2, standard deviation 1.
    scale = 1 + EPS
    np.testing.assert_allclose(result.reward, [1 / scale, -1 / scale], rtol=1e-6)
    np.testing.assert_allclose(result.step_rewards, np.array([1, 2, 0.5, 0.5]) / scale, rtol=1e-6)
    np.testing.assert_allclose(result.reward_at_end, [-2 / scale] * 2, rtol=1e-6)

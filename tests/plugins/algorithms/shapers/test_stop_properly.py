"""ProRL's rule for truncated samples."""

import numpy as np
import pytest
from pydantic import ValidationError

from rlhf_plugin_algorithms.shapers.stop_properly import (
    StopProperly,
    StopProperlyConfig,
    stop_properly_reward,
)


def shaped(batch, info, coef):
    return StopProperly(StopProperlyConfig(coef=coef)).shape(batch, info)


@pytest.mark.parametrize(
    ("coef", "expected"),
    [
        (1.0, [1.0, 0.8, -0.4]),  # changes nothing
        (0.5, [1.0, 0.4, -0.2]),  # multiplies the second and the third
        (0.0, [1.0, 0.0, 0.0]),
        (-0.5, [1.0, -0.5, -0.5]),  # replaces them
    ],
)
def test_truncated_samples_are_scaled_or_replaced(Row, columns, info, coef, expected):
    batch = columns(
        Row(reward=1.0), Row(reward=0.8, truncated=True), Row(reward=-0.4, truncated=True)
    )

    result, metrics = shaped(batch, info, coef)

    np.testing.assert_allclose(result.reward, np.float32(expected), rtol=1e-6)
    assert metrics["stop_properly/changed"].value() == pytest.approx(2 / 3)


@pytest.mark.parametrize(("coef", "expected"), [(0.5, 1.0), (0.0, 0.0), (-1.0, -1.0)])
def test_the_rule_is_for_what_the_episode_earned_in_all(Row, columns, info, coef, expected):
    row = {"reward": 0.5, "turns": (2, 3), "turn_rewards": (1.0, 0.5)}  # 2 in all
    batch = columns(Row(**row, truncated=True), Row(**row))

    result, _ = shaped(batch, info, coef)

    np.testing.assert_array_equal(result.total_reward, np.float32([expected, 2.0]))
    np.testing.assert_array_equal(result.turn_rewards[2:], batch.turn_rewards[2:])


def test_an_episode_is_truncated_if_one_of_its_sequences_is(Row, columns, info):
    batch = columns(
        Row(reward=1.0, sample=0, segment=0, truncated=True),
        Row(reward=1.0, sample=0, segment=1),
        Row(reward=1.0, sample=1),
    )

    result, metrics = shaped(batch, info, 0.0)

    assert result.reward.tolist() == [0.0, 0.0, 1.0]
    assert metrics["stop_properly/changed"].value() == 0.5  # of two samples one


def test_what_was_not_truncated_stays_whatever_it_is():
    reward = np.array([np.inf, -1e30, 0.1])

    np.testing.assert_array_equal(
        stop_properly_reward(reward, np.zeros(3, dtype=bool), coef=-1.0), reward
    )


@pytest.mark.parametrize("coef", [1.01, float("nan"), float("-inf")])
def test_options_out_of_range_are_refused(coef):
    with pytest.raises(ValidationError):
        StopProperlyConfig(coef=coef)


@pytest.mark.parametrize(
    ("coef", "parts", "at_end"), [(0.5, [0.25, 0.5], 0.0), (0.0, [0, 0], 0.0), (-1.0, [0, 0], -1.0)]
)
def test_parts_of_a_truncated_score_are_scaled_or_replaced(Row, columns, info, coef, parts, at_end):
    row = {"reward": 1.5, "turns": (3,), "step_rewards": ((0, 0.5), (1, 1.0))}
    batch = columns(Row(**row, truncated=True), Row(**row))

    result, _ = shaped(batch, info, coef)

    assert result.step_rewards.tolist() == [*parts, 0.5, 1.0]
    assert result.reward_at_end.tolist() == [at_end, 0.0]

"""``zero_variance``: prompts whose samples differ."""

import numpy as np
import pytest

from rlhf_plugin_algorithms.filters.zero_variance import ZeroVariance, ZeroVarianceConfig


@pytest.fixture
def varied(info):
    def keep(group, **options):
        return ZeroVariance(ZeroVarianceConfig(**options)).keep(group, info)

    return keep


@pytest.fixture
def group(Row, columns):
    """A group with these rewards."""

    def build(*rewards):
        return columns(*(Row(reward=reward) for reward in rewards))

    return build


@pytest.mark.parametrize(("value", "size"), [(0.1, 8), (0.3, 7), (0.9, 16), (1e6, 5), (0.0, 2)])
def test_equal_rewards_are_dropped(group, varied, value, size):
    assert varied(group(*[value] * size), max_std=0.0) == "same_reward"


def test_the_smallest_difference_in_float32_is_kept_without_tolerance(group, varied):
    almost = group(0.1, 0.1, float(np.nextafter(np.float32(0.1), np.float32(1))))

    assert varied(almost, max_std=0.0) is None
    assert varied(almost) == "same_reward"


def test_sums_that_differ_by_rounding_are_the_same_reward(Row, columns, varied):
    rounded = columns(
        Row(reward=0.7, turn_rewards=(0.1,)), Row(reward=0.8), Row(reward=0.6, turn_rewards=(0.2,))
    )

    assert varied(rounded) == "same_reward"


def test_different_rewards_are_kept_and_a_group_of_one_is_not(group, varied):
    assert varied(group(1.0, 1.0, 0.0)) is None
    assert varied(group(1.0)) == "same_reward"


def test_sequences_of_one_episode_are_no_difference(Row, columns, varied):
    one = columns(Row(reward=1.0, sample=0, segment=0), Row(reward=0.0, sample=0, segment=1))
    two = columns(
        Row(reward=1.0, sample=0, segment=0),
        Row(reward=0.0, sample=0, segment=1),
        Row(reward=0.5, sample=1),
    )

    assert varied(one) == "same_reward"
    assert varied(two) == "same_reward"  # both episodes have a mean of 0.5

"""Which groups are trained on."""

import numpy as np
import pytest
from pydantic import ValidationError

from rlhf_core import ConfigError
from rlhf_plugin_shaping.drop_errors import DropErrors
from rlhf_plugin_shaping.drop_stale import DropStale
from rlhf_plugin_shaping.dynamic_sampling import DynamicSampling
from rlhf_plugin_shaping.filter_config import (
    DropErrorsConfig,
    DropStaleConfig,
    DynamicSamplingConfig,
    ZeroVarianceConfig,
)
from rlhf_plugin_shaping.zero_variance import ZeroVariance


@pytest.fixture
def dynamic(info):
    def keep(group, **options):
        return DynamicSampling(DynamicSamplingConfig(**options)).keep(group, info)

    return keep


@pytest.fixture
def varied(info):
    def keep(group, **options):
        return ZeroVariance(ZeroVarianceConfig(**options)).keep(group, info)

    return keep


@pytest.fixture
def fresh(info):
    def keep(group, **options):
        return DropStale(DropStaleConfig(**options)).keep(group, info)

    return keep


@pytest.fixture
def sound(info):
    def keep(group, **options):
        return DropErrors(DropErrorsConfig(**options)).keep(group, info)

    return keep


@pytest.fixture
def group(Row, columns):
    """A group with these rewards."""

    def build(*rewards):
        return columns(*(Row(reward=reward) for reward in rewards))

    return build


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ((1.0, 0.0, 0.0), None),
        ((1.0, 1.0, 1.0), "too_easy"),
        ((0.0, 0.0), "too_hard"),
        ((1.0, -1.0), "too_hard"),  # the mean, 0, is not more than 0
        ((0.5, 0.5), None),  # equal rewards inside of the range are kept
        ((2.0, 0.5), "too_easy"),
    ],
)
def test_a_prompt_is_kept_if_its_mean_is_strictly_inside(group, dynamic, rewards, expected):
    assert dynamic(group(*rewards)) == expected


@pytest.mark.parametrize("size", [1, 7, 8, 64])
@pytest.mark.parametrize("value", [0.1, 0.3, 0.7])
def test_a_mean_that_equals_a_bound_is_outside_also_where_neither_is_exact(
    group, dynamic, value, size
):
    equal = group(*[value] * size)

    assert dynamic(equal, low=value, high=1.0) == "too_hard"
    assert dynamic(equal, low=0.0, high=value) == "too_easy"


def test_what_shapers_took_away_counts_unless_a_reward_is_named(Row, columns, dynamic):
    solved = columns(*(Row(reward=0.7, rewards={"right": 1.0}) for _ in range(3)))

    assert dynamic(solved) is None
    assert dynamic(solved, reward="right") == "too_easy"


def test_a_reward_that_does_not_exist_is_refused_with_those_that_do(Row, columns, dynamic):
    with pytest.raises(ConfigError, match=r"reward is 'rigth'; the rewards of this run are right"):
        dynamic(columns(Row(rewards={"right": 1.0})), reward="rigth")


def test_a_group_with_an_unknown_reward_is_kept(Row, columns, dynamic):
    some = columns(Row(rewards={"right": 1.0}), Row(rewards={"other": 1.0}))

    assert dynamic(some, reward="right") is None


def test_an_episode_of_several_sequences_counts_once_in_the_mean(Row, columns, dynamic):
    rows = [Row(reward=1.0, sample=0, segment=segment) for segment in range(9)]
    some = columns(*rows, Row(reward=0.0, sample=1))

    assert dynamic(some, high=0.6) is None  # by sequence the mean is 0.9


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


@pytest.mark.parametrize(
    ("versions", "limit", "expected"),
    [
        ((5, 5, 5), 0, None),
        ((4, 5, 5), 0, "stale"),
        ((4, 4, 5), 1, None),
        ((5, 3, 5), 1, "stale"),  # one old token in the middle is enough
        ((1, 1, 1), 4, None),
        ((0, 1, 1), 4, "stale"),
    ],
)
def test_the_oldest_token_decides(Row, columns, fresh, versions, limit, expected):
    some = columns(Row(), Row(versions=versions))  # the weights to be trained are version 5

    assert fresh(some, limit=limit) == expected


@pytest.mark.parametrize(
    ("errors", "max_share", "expected"),
    [
        ((0.0, 0.0, 0.0, 0.0), 0.0, None),
        ((1.0, 0.0, 0.0, 0.0), 0.0, "errors"),
        ((1.0, 0.0, 0.0, 0.0), 0.25, None),
        ((1.0, 3.0, 0.0, 0.0), 0.25, "errors"),
        ((-1.0, 0.0, 0.0, 0.0), 0.0, None),
    ],
)
def test_more_errors_than_allowed_drop_a_group(Row, columns, sound, errors, max_share, expected):
    some = columns(*(Row(metrics={"error": error}) for error in errors))

    assert sound(some, max_share=max_share) == expected


def test_samples_that_report_nothing_have_no_error(Row, columns, sound):
    assert sound(columns(Row(), Row())) is None
    assert sound(columns(Row(metrics={"error": 1.0}), Row()), max_share=0.5) is None
    assert sound(columns(Row(metrics={"crash": 1.0}), Row()), metric="crash") == "errors"


def test_an_episode_with_errors_in_two_sequences_counts_once(Row, columns, sound):
    some = columns(
        Row(sample=0, segment=0, metrics={"error": 1.0}),
        Row(sample=0, segment=1, metrics={"error": 1.0}),
        Row(sample=1),
    )

    assert sound(some, max_share=0.5) is None


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (DynamicSamplingConfig, {"low": 1.0}),
        (DynamicSamplingConfig, {"high": float("inf")}),
        (ZeroVarianceConfig, {"max_std": -1e-9}),
        (DropStaleConfig, {"limit": -1}),
        (DropErrorsConfig, {"max_share": 1.0}),
        (DropErrorsConfig, {"metric": ""}),
    ],
)
def test_options_out_of_range_are_refused(config, wrong):
    with pytest.raises(ValidationError):
        config(**wrong)

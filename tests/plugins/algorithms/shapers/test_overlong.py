"""DAPO's soft punishment."""

import numpy as np
import pytest
from pydantic import ValidationError

from rlhf_core import ConfigError
from rlhf_plugin_algorithms.shapers.overlong import Overlong, OverlongConfig, overlong_penalty
from rlhf_testing.errors import has_code


def shaped(batch, info, **options):
    return Overlong(OverlongConfig(**options)).shape(batch, info)


def test_the_numbers_of_openrlhf(Row, columns, info):
    # Limit 10, buffer 4: free up to 6, then a quarter per token: 7 -> 1/4, 8 -> 2/4, 12 -> all of it.
    batch = columns(*(Row(reward=1.0, turns=(length,)) for length in (5, 7, 8, 12)))

    result, metrics = shaped(batch, info, buffer=4)

    np.testing.assert_array_equal(result.reward, np.float32([1, 0.75, 0.5, 0]))
    assert metrics["overlong/penalty"].value() == pytest.approx(1.75 / 4)
    assert metrics["overlong/penalized"].value() == pytest.approx(3 / 4)


def test_the_penalty_equals_the_three_cases_of_the_paper():
    lengths, limit, buffer = np.arange(0, 40), 20, 7

    actual = overlong_penalty(lengths, limit=limit, buffer=buffer, factor=1.0)

    for length, penalty in zip(lengths, actual, strict=True):
        if length <= limit - buffer:
            expected = 0.0
        elif length <= limit:
            expected = -((limit - buffer) - length) / buffer
        else:
            expected = 1.0
        assert penalty == pytest.approx(expected), length


def test_factor_0_changes_nothing(Row, columns, info):
    batch = columns(Row(reward=0.1, turns=(30,)))

    result, _ = shaped(batch, info, factor=0.0)

    np.testing.assert_array_equal(result.reward, batch.reward)


def test_a_buffer_as_long_as_the_limit_punishes_every_token():
    penalty = overlong_penalty(np.array([1, 5, 10]), limit=10, buffer=10, factor=2.0)

    np.testing.assert_allclose(penalty, [0.2, 1.0, 2.0], rtol=1e-15)


def test_the_buffer_is_a_fifth_of_the_limit_when_unset(Row, columns, info):
    batch = columns(*(Row(turns=(length,)) for length in (8, 9, 10)))

    result, _ = shaped(batch, info)  # limit 10, buffer 2

    np.testing.assert_array_equal(result.reward, np.float32([0, -0.5, -1]))


@pytest.mark.parametrize("gap", [1, 50])
def test_environment_text_is_not_counted(Row, columns, info, gap):
    batch = columns(Row(turns=(4, 4)), gap=gap)

    by_turn, _ = shaped(batch, info, buffer=4)
    by_episode, _ = shaped(batch, info, buffer=4, max_tokens=10)

    assert by_turn.reward.tolist() == [0.0]  # the longest turn has 4 tokens
    assert by_episode.reward.tolist() == [-0.5]  # both turns have 8


def test_a_turn_too_long_is_punished_whichever_it_is(Row, columns, info):
    batch = columns(Row(turns=(1, 9, 2)), Row(turns=(9, 1, 2)), Row(turns=(4, 4, 4)))

    result, _ = shaped(batch, info, buffer=4)

    np.testing.assert_array_equal(result.reward, np.float32([-0.75, -0.75, 0]))


def test_the_training_sequences_of_an_episode_are_measured_together(Row, columns, info):
    batch = columns(
        Row(turns=(5,), sample=0, segment=0),
        Row(turns=(4,), sample=0, segment=1),
        Row(turns=(5,), sample=1),
    )

    result, _ = shaped(batch, info, buffer=4, max_tokens=10)

    np.testing.assert_array_equal(result.reward, np.float32([-0.75, -0.75, 0]))


def test_a_buffer_longer_than_the_limit_of_the_run_names_both_options(Row, columns, info):
    with pytest.raises(
        ConfigError,
        match=r"overlong\.buffer is 11.*rollout\.max_new_tokens = 10",
        check=has_code("reward/overlong-buffer"),
    ):
        shaped(columns(Row()), info, buffer=11)


@pytest.mark.parametrize(
    "wrong", [{"buffer": 0}, {"factor": -1.0}, {"max_tokens": 5, "buffer": 6}, {"max_tokens": 0}]
)
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(ValidationError):
        OverlongConfig(**wrong)

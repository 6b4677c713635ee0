"""Rewards cut to a range."""

import numpy as np
import pytest
from pydantic import ValidationError

from rlhf_core.math import group_mean
from rlhf_plugin_algorithms.shapers.clip import Clip, ClipConfig


def shaped(batch, info, **options):
    return Clip(ClipConfig(**options)).shape(batch, info)


def test_rewards_are_cut_to_the_range(Row, columns, info):
    batch = columns(*(Row(reward=reward) for reward in (-20.0, -1.0, 0.3, 1.0, 1e6)))

    result, metrics = shaped(batch, info, low=-1.0, high=1.0)

    np.testing.assert_array_equal(result.reward, np.float32([-1, -1, 0.3, 1, 1]))
    assert metrics["clip_reward/low"].value() == pytest.approx(1 / 5)
    assert metrics["clip_reward/high"].value() == pytest.approx(1 / 5)


def test_rewards_inside_stay_to_the_bit(Row, columns, info):
    batch = columns(*(Row(reward=reward) for reward in (0.1, -0.7, 1 / 3)))

    result, _ = shaped(batch, info)

    np.testing.assert_array_equal(result.reward, batch.reward)


def test_clipping_twice_is_clipping_once(Row, columns, info):
    once, _ = shaped(columns(Row(reward=12.3), Row(reward=-12.3)), info)

    twice, metrics = shaped(once, info)

    np.testing.assert_array_equal(twice.reward, once.reward)
    assert metrics["clip_reward/high"].value() == 0.0


def test_the_total_is_in_the_range_and_the_turns_keep_theirs(Row, columns, info):
    batch = columns(Row(reward=0.5, turns=(2, 2), turn_rewards=(1.0, 2.0)))  # 3.5 in all

    result, _ = shaped(batch, info, low=-1.0, high=2.0)

    assert result.total_reward.tolist() == [2.0]
    assert result.reward.tolist() == [-1.0]  # 0.5 - (3.5 - 2)
    np.testing.assert_array_equal(result.turn_rewards, batch.turn_rewards)


def test_an_outlier_does_not_reach_the_baseline_of_the_others(Row, columns, info):
    """Clipping after the baseline would leave the other samples with -25 each."""
    import torch

    batch = columns(*(Row(reward=reward) for reward in (100.0, 0.0, 0.0, 0.0)))

    result, _ = shaped(batch, info, low=-1.0, high=1.0)

    rewards = torch.tensor(result.reward)
    advantages = rewards - group_mean(rewards, torch.tensor(result.group))
    assert advantages.tolist() == [0.75, -0.25, -0.25, -0.25]


def test_an_empty_range_is_refused():
    with pytest.raises(ValidationError, match=r"low is 1, expected less than high = 1"):
        ClipConfig(low=1.0, high=1.0)

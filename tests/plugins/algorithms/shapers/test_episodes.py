"""Metrics of shapers are over samples: an episode of two rows counts once."""

import pytest

from rlhf_plugin_algorithms.shapers.clip import Clip, ClipConfig
from rlhf_plugin_algorithms.shapers.length_bonus import LengthBonus, LengthBonusConfig
from rlhf_plugin_algorithms.shapers.overlong import Overlong, OverlongConfig


@pytest.mark.parametrize(
    ("shaper", "expected"),
    [
        (Clip(ClipConfig(high=1.0)), {"clip_reward/low": 0.0, "clip_reward/high": 0.5}),
        (
            Overlong(OverlongConfig(max_tokens=6, buffer=2, factor=3.0)),
            {"overlong/penalty": 1.5, "overlong/penalized": 0.5},
        ),
        # 6 and 2 tokens, for -0.5 each
        (LengthBonus(LengthBonusConfig(mode="token", per_token=-0.5)), {"length_bonus/mean": -2.0}),
    ],
)
def test_an_episode_of_two_rows_counts_once_in_metrics(Row, columns, info, shaper, expected):
    batch = columns(
        Row(reward=4.0, sample=0, segment=0, turns=(3,)),
        Row(reward=4.0, sample=0, segment=1, turns=(3,)),
        Row(reward=0.0, sample=1, turns=(2,)),
    )

    _, metrics = shaper.shape(batch, info)

    assert {name: metrics[name].value() for name in expected} == expected

"""Groups of samples as lines of a table, by hand."""

import pytest

from rlhf_core.contracts import RolloutSample
from rlhf_plugin_loggers.group_table import GROUP_COLUMNS, group_rows


def sample(uid, reward, *, truncated=False):
    return RolloutSample(
        uid=uid,
        prompt=f"prompt of {uid}",
        response=f"answer {uid}",
        reward=reward,
        truncated=truncated,
    )


def test_a_line_has_the_spread_the_best_and_the_worst_of_a_prompt():
    samples = [
        sample("0.7.0.0", 1.0),
        sample("0.7.1.0", 0.0, truncated=True),
        sample("0.7.2.0", 0.5),
        sample("0.7.3.0", 0.5),
        sample("0.8.0.0", 2.0),
        sample("0.8.1.0", 2.0),
    ]

    first, second = (dict(zip(GROUP_COLUMNS, row, strict=True)) for row in group_rows(3, samples))

    assert first == {
        "step": 3,
        "group": "0.7",
        "samples": 4,
        "reward_mean": 0.5,
        "reward_std": pytest.approx((0.5 / 3) ** 0.5),
        "reward_min": 0.0,
        "reward_max": 1.0,
        "truncated": 0.25,
        "prompt": "prompt of 0.7.0.0",
        "best": "answer 0.7.0.0",
        "worst": "answer 0.7.1.0",
    }
    assert (second["reward_std"], second["best"], second["worst"]) == (
        0.0,
        "answer 0.8.0.0",
        "answer 0.8.0.0",
    )


def test_a_prompt_with_one_sample_is_no_group_and_a_second_segment_no_second_sample():
    assert (
        group_rows(1, [sample("0.7.0.0", 1.0), sample("0.7.0.1", 1.0), sample("0.8.0.0", 0.0)])
        == []
    )

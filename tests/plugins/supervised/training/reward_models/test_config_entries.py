"""Entries of a trained model's configuration."""

import json

import numpy as np
import pytest

from rlhf_plugin_supervised.training.reward_models.config_entries import (
    SMALLEST_STD,
    statistics_of,
    write_entries,
)


def test_mean_and_sample_standard_deviation_by_hand():
    # Mean 3; squares of the differences 4 + 1 + 0 + 1 + 4 = 10, over 4.
    scores = np.array([1.0, 2.0, 3.0, 4.0, 5.0], dtype=np.float32)

    assert statistics_of(scores) == {"mean": 3.0, "std": pytest.approx(2.5**0.5)}


def test_equal_scores_leave_something_to_divide_by():
    assert statistics_of(np.full(2, 2.0, dtype=np.float32))["std"] == SMALLEST_STD


def test_entries_come_beside_those_that_are_there(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "qwen3", "mean": 1.0}))

    write_entries(path, {"mean": 0.5, "step_separator": "\n"})

    assert json.loads(path.read_text()) == {
        "model_type": "qwen3",
        "mean": 0.5,
        "step_separator": "\n",
    }

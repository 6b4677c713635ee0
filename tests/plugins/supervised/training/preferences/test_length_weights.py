"""LD-DPO: tokens beyond the shorter answer of a pair weigh less, under the policy and under the reference."""

import numpy as np
import pytest
import torch

from rlhf_core.contracts import ANSWER_WEIGHTS, TrainBatch, TrajectoryColumns, Uid
from rlhf_plugin_supervised.training.preferences.answers import answers_of, length_weights
from rlhf_testing.conformance.columns import trajectory

LENGTHS = (3, 1, 2, 4, 2, 2)
"""Of the chosen and the rejected answer of three pairs."""


@pytest.fixture
def rows():
    return TrajectoryColumns.from_trajectories(
        [trajectory(Uid(0, row), (length,)) for row, length in enumerate(LENGTHS)]
    )


@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
def test_tokens_beyond_the_shorter_answer_have_the_weight_alpha(rows, alpha):
    weights = length_weights(rows, alpha)

    expected = [1, alpha, alpha, 1, 1, 1, 1, 1, alpha, alpha, 1, 1, 1, 1]
    assert weights.tolist() == expected
    assert weights.dtype == np.float32


@pytest.mark.parametrize("seed", range(3))
def test_log_probs_of_answers_are_those_of_a_loop_over_tokens(rows, seed):
    draw = np.random.default_rng(seed)
    policy, reference = -draw.random((2, 14)).astype(np.float32)
    batch = TrainBatch(
        trajectories=rows,
        columns={"ref_logprobs": reference, ANSWER_WEIGHTS: length_weights(rows, 0.3)},
    )

    found = [answers_of(batch, policy, np.arange(first, 6, 2)) for first in (0, 1)]

    starts = np.cumsum([0, *LENGTHS])
    for row, length in enumerate(LENGTHS):
        shorter = min(length, LENGTHS[row ^ 1])
        for logprobs, name in ((policy, "policy"), (reference, "reference")):
            total = 0.0
            for place in range(length):
                factor = 1.0 if place < shorter else 0.3
                total += factor * float(logprobs[starts[row] + place])
            actual = getattr(found[row % 2], name)[row // 2]
            torch.testing.assert_close(float(actual), total, atol=1e-6, rtol=1e-6)
        assert int(found[row % 2].num_tokens[row // 2]) == length

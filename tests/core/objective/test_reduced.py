"""Parts of a step's loss: they add up to the step, however it is cut."""

from dataclasses import replace

import pytest
import torch

from rlhf_core.contracts import Normalizers
from rlhf_core.objective.columns import reduced

MASK = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
LOSS = torch.tensor([[1.0, 3.0, 99.0], [4.0, 99.0, 99.0], [1.0, 2.0, 6.0]])
TOTALS = Normalizers(num_actions=6, num_sequences=3, max_actions=4)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token-mean", (1 + 3 + 4 + 1 + 2 + 6) / 6),
        ("seq-mean-token-mean", (4 / 2 + 4 / 1 + 9 / 3) / 3),
        ("seq-mean-token-sum-norm", (4 + 4 + 9) / 3 / 4),
    ],
)
def test_the_parts_of_any_cut_add_up_to_the_step(aggregation, expected):
    whole = reduced(LOSS, MASK, aggregation, TOTALS)
    parts = [reduced(LOSS[rows], MASK[rows], aggregation, TOTALS) for rows in ([0], [1, 2])]

    assert whole.item() == pytest.approx(expected)
    assert sum(parts).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token-mean", (1 + 3 + 4 + 1 + 2 + 6) / 6),
        # Rows 0 and 2 are an episode of 5 actions: its mean is (1 + 3 + 1 + 2 + 6) / 5.
        ("seq-mean-token-mean", (13 / 5 + 4 / 1) / 2),
        ("seq-mean-token-sum-norm", (13 + 4) / 2 / 4),
    ],
)
def test_an_episode_of_two_rows_weighs_as_one_however_it_is_cut(aggregation, expected):
    totals, weights = replace(TOTALS, num_sequences=2), torch.tensor([2 / 5, 1.0, 3 / 5])

    parts = [
        reduced(LOSS[rows], MASK[rows], aggregation, totals, weights[rows])
        for rows in ([0, 1], [2])
    ]

    assert sum(parts).item() == pytest.approx(expected)

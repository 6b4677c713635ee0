"""Two ranks that learn from preferred answers, against one rank of the torch backend: no pair is torn apart."""

import pytest
import torch

pytestmark = [pytest.mark.scale, pytest.mark.slow]
ROUNDING = {"atol": 1e-6, "rtol": 0.0}
WAYS = {"answers": (0, 1, 2, 3), "tokens of answers": (0, 2, 3), "matrices of answers": (1, 2)}
CASES = [
    pytest.param(*case, marks=pytest.mark.matrix if case[1] == 1 else ())
    for case in ((way, stage) for way, stages in WAYS.items() for stage in stages)
]


@pytest.fixture(scope="session")
def found(folder_of, read_ranks):
    """What the ranks of a way found at a stage."""
    return lambda way, stage: read_ranks(folder_of(way, stage), stage, "preferences")


@pytest.mark.parametrize(("way", "stage"), CASES)
def test_three_updates_are_those_of_one_rank(found, expected, way, stage, assert_same_metrics):
    ranks, alone = found(way, stage), expected("preferences")

    assert_same_metrics(ranks, alone, more_passes=True)
    for loss in ("paired", "single"):
        torch.testing.assert_close(ranks[0].weights(loss), alone.weights(loss), **ROUNDING)
        assert ranks[0].weights(loss)


@pytest.mark.parametrize(("way", "stage"), CASES)
def test_each_rank_gets_the_logprobs_of_its_answers(found, expected, way, stage, assert_same_rows):
    ranks, alone = found(way, stage), expected("preferences")

    for loss in ("paired", "single"):
        for seed in range(3):
            # Two updates of rounding lie before the third.
            assert_same_rows(ranks, alone, f"logprobs/{loss}/{seed}", atol=1e-5)


def test_the_pairs_are_in_several_micro_batches(expected):
    """Otherwise no pair could have been torn apart."""
    micro_batches = [
        step["train/micro_batches"][0] for step in expected("preferences").facts["metrics"]
    ]

    assert min(micro_batches[:2]) > 1

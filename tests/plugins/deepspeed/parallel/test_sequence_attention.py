"""Two ranks that compute each sequence together, a slice of its tokens each, against one rank of the torch backend.

The first rank brings one row and the second all others, so their group has to put the rows together first.
"""

import pytest
import torch

pytestmark = [pytest.mark.scale, pytest.mark.slow]
# Stages 2 and 3 cut gradients and weights; what they share with the others the scenarios of rows have at each stage.
stages = pytest.mark.parametrize(
    "stage", [*(pytest.param(stage, marks=pytest.mark.matrix) for stage in (0, 1)), 2, 3]
)
ROUNDING = {"atol": 1e-6, "rtol": 0.0}


@stages
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_the_gradient_is_that_of_one_rank(sliced, expected, stage, mode, assert_same_metrics):
    """With a learning rate of 1 the weights move by the gradient, so their distance is its error."""
    ranks, alone = sliced(stage, "gradient"), expected("gradient")

    torch.testing.assert_close(ranks[0].weights(mode), alone.weights(mode), **ROUNDING)
    assert_same_metrics(ranks, alone)


@pytest.mark.parametrize("stage", [pytest.param(0, marks=pytest.mark.matrix), 2, 3])
def test_groups_of_ranks_share_the_rows(pairs, expected, stage, assert_same_metrics):
    """Four ranks; the second pair only has what all ranks have to do together."""
    ranks, alone = pairs(stage, "gradient"), expected("gradient")
    torch.testing.assert_close(
        ranks[3].weights("token-mean"), alone.weights("token-mean"), **ROUNDING
    )
    assert_same_metrics(ranks, alone)

    ranks, alone = pairs(stage, "training"), expected("training")
    torch.testing.assert_close(ranks[2].weights(), alone.weights(), **ROUNDING)
    assert_same_metrics(ranks, alone)


@stages
def test_each_rank_gets_the_logprobs_of_its_own_rows(sliced, expected, stage, assert_same_rows):
    ranks, alone = sliced(stage, "gradient"), expected("gradient")

    assert_same_rows(ranks, alone, "logprobs/token-mean")
    mine, together = (one.tensors["logprobs/token-mean"] for one in (ranks[0], alone))
    assert len(mine) < len(together) / 2


@stages
@pytest.mark.parametrize(
    "name",
    [
        "training",
        "recomputing",
        "shared_keys",
        "untied",
        "windows",
        "experts",
        "balanced",
        "replayed",
    ],
)
def test_training_is_that_of_one_rank(sliced, expected, stage, name, assert_same_metrics):
    """Clipping, schedule, a skipped update; layers recomputed, fewer key heads than ranks, sliding windows, experts."""
    ranks, alone = sliced(stage, name), expected(name)

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)
    torch.testing.assert_close(ranks[1].weights(), ranks[0].weights(), atol=0, rtol=0)
    assert_same_metrics(ranks, alone)
    assert [rank.facts["unchanged"] for rank in ranks] == [True, True]


@stages
def test_bfloat16_training_stays_near_one_rank(sliced, expected, stage, assert_same_metrics):
    """Gradients of two slices round differently. Weights may end one step of bfloat16 apart, 2^-8 of their size."""
    ranks, alone = sliced(stage, "mixed"), expected("mixed")

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), atol=1e-3, rtol=2**-7)
    assert_same_metrics(ranks, alone, atol=5e-3)


@stages
def test_a_critic_learns_values_like_one_rank(
    sliced, expected, stage, assert_same_metrics, assert_same_rows
):
    ranks, alone = sliced(stage, "critic"), expected("critic")

    assert_same_rows(ranks, alone, "values", atol=1e-5)
    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)
    assert_same_metrics(ranks, alone)


@stages
def test_a_teachers_tokens_go_with_their_actions(sliced, expected, stage, assert_same_metrics):
    ranks, alone = sliced(stage, "top_of_teacher"), expected("top_of_teacher")

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)
    assert_same_metrics(ranks, alone)


@stages
def test_a_rank_without_rows_helps_with_the_others(sliced, expected, stage, assert_same_rows):
    ranks, alone = sliced(stage, "few_rows"), expected("few_rows")

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)
    for name in ("before", "statistics", "top"):
        assert_same_rows(ranks, alone, name)
        assert not len(ranks[1].tensors[name])


@stages
def test_a_reference_scores_like_one_rank(sliced, expected, stage, assert_same_rows):
    ranks, alone = sliced(stage, "reference"), expected("reference")

    for name in ("logprobs", "again"):
        assert_same_rows(ranks, alone, name, of="logprobs")

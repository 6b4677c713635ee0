"""Two ranks that compute each sequence together, a slice of its tokens each, against one rank of the torch backend.

The first rank brings one row and the second all others, so their group has to put the rows together first.
"""

import numpy as np
import pytest
import torch

pytestmark = [pytest.mark.scale, pytest.mark.slow]
stages = pytest.mark.parametrize("stage", [0, 1, 2, 3])
ROUNDING = {"atol": 1e-6, "rtol": 0.0}


def weights(found, prefix="weights"):
    return {name: t for name, t in found.tensors.items() if name.startswith(f"{prefix}/")}


@stages
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_the_gradient_is_that_of_one_rank(sliced, expected, stage, mode, assert_same_metrics):
    """With a learning rate of 1 the weights move by the gradient, so their distance is its error."""
    ranks, alone = sliced(stage, "gradient"), expected("gradient")

    torch.testing.assert_close(weights(ranks[0], mode), weights(alone, mode), **ROUNDING)
    assert_same_metrics(ranks, alone)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_groups_of_ranks_share_the_rows(pairs, expected, stage, assert_same_metrics):
    """Four ranks; the second pair only has what all ranks have to do together."""
    ranks, alone = pairs(stage, "gradient"), expected("gradient")
    torch.testing.assert_close(
        weights(ranks[3], "token-mean"), weights(alone, "token-mean"), **ROUNDING
    )
    assert_same_metrics(ranks, alone)

    ranks, alone = pairs(stage, "training"), expected("training")
    torch.testing.assert_close(weights(ranks[2]), weights(alone), **ROUNDING)
    assert_same_metrics(ranks, alone)


@stages
def test_each_rank_gets_the_logprobs_of_its_own_rows(sliced, expected, stage):
    ranks, alone = sliced(stage, "gradient"), expected("gradient")

    together = torch.cat([rank.tensors["logprobs/token-mean"] for rank in ranks])

    torch.testing.assert_close(together, alone.tensors["logprobs/token-mean"], **ROUNDING)
    assert len(ranks[0].tensors["logprobs/token-mean"]) < len(together) / 2


@stages
@pytest.mark.parametrize(
    "name", ["training", "recomputing", "shared_keys", "untied", "windows", "experts"]
)
def test_training_is_that_of_one_rank(sliced, expected, stage, name, assert_same_metrics):
    """Clipping, schedule, a skipped update; layers recomputed, fewer key heads than ranks, sliding windows, experts."""
    ranks, alone = sliced(stage, name), expected(name)

    torch.testing.assert_close(weights(ranks[0]), weights(alone), **ROUNDING)
    torch.testing.assert_close(weights(ranks[1]), weights(ranks[0]), atol=0, rtol=0)
    assert_same_metrics(ranks, alone)
    assert [rank.facts["unchanged"] for rank in ranks] == [True, True]


@stages
def test_bfloat16_training_stays_near_one_rank(sliced, expected, stage, assert_same_metrics):
    """Gradients of two slices round differently. Weights may end one step of bfloat16 apart, 2^-8 of their size."""
    ranks, alone = sliced(stage, "mixed"), expected("mixed")

    torch.testing.assert_close(weights(ranks[0]), weights(alone), atol=1e-3, rtol=2**-7)
    assert_same_metrics(ranks, alone, atol=5e-3)


@stages
def test_a_critic_learns_values_like_one_rank(sliced, expected, stage, assert_same_metrics):
    ranks, alone = sliced(stage, "critic"), expected("critic")

    together = torch.cat([rank.tensors["values"] for rank in ranks])

    torch.testing.assert_close(together, alone.tensors["values"], atol=1e-5, rtol=0)
    torch.testing.assert_close(weights(ranks[0]), weights(alone), **ROUNDING)
    assert_same_metrics(ranks, alone)


@stages
def test_a_teachers_tokens_go_with_their_actions(sliced, expected, stage, assert_same_metrics):
    ranks, alone = sliced(stage, "top_of_teacher"), expected("top_of_teacher")

    torch.testing.assert_close(weights(ranks[0]), weights(alone), **ROUNDING)
    assert_same_metrics(ranks, alone)


@stages
def test_a_rank_without_rows_helps_with_the_others(sliced, expected, stage):
    ranks, alone = sliced(stage, "few_rows"), expected("few_rows")

    torch.testing.assert_close(weights(ranks[0]), weights(alone), **ROUNDING)
    for name in ("before", "statistics"):
        torch.testing.assert_close(ranks[0].tensors[name], alone.tensors[name], **ROUNDING)
        assert ranks[1].tensors[name].shape == (0,)
    np.testing.assert_array_equal(ranks[0].tensors["top"], alone.tensors["top"])
    assert ranks[1].tensors["top"].shape == (0, 3)


@stages
def test_a_reference_scores_like_one_rank(sliced, expected, stage):
    ranks, alone = sliced(stage, "reference"), expected("reference")

    for name in ("logprobs", "again"):
        together = torch.cat([rank.tensors[name] for rank in ranks])
        torch.testing.assert_close(together, alone.tensors["logprobs"], **ROUNDING)

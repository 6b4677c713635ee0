"""Two ranks that share the matrices of each model, against one rank of the torch backend.

The first rank brings one row and the second all others, so they have to put the rows together first.
"""

import pytest
import torch
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.scale, pytest.mark.slow]
stages = pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.matrix), 2])
ROUNDING = {"atol": 1e-6, "rtol": 0.0}


@stages
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_the_gradient_is_that_of_one_rank(
    sharded, expected, stage, mode, assert_same_metrics, assert_same_rows
):
    """With a learning rate of 1 the weights move by the gradient, so their distance is its error."""
    ranks, alone = sharded(stage, "gradient"), expected("gradient")

    torch.testing.assert_close(ranks[0].weights(mode), alone.weights(mode), **ROUNDING)
    assert_same_metrics(ranks, alone)
    assert_same_rows(ranks, alone, "logprobs/token-mean")


@stages
@pytest.mark.parametrize("name", ["training", "recomputing", "untied", "windows"])
def test_training_is_that_of_one_rank(sharded, expected, stage, name, assert_same_metrics):
    """Clipping by a norm over all shards, schedule, a skipped update, the average; several families."""
    ranks, alone = sharded(stage, name), expected(name)

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)
    torch.testing.assert_close(ranks[1].weights(), ranks[0].weights(), atol=1e-7, rtol=0)
    assert_same_metrics(ranks, alone)
    assert [rank.facts["unchanged"] for rank in ranks] == [True, True]
    for folder in ("ema", "plain"):
        mine, other = (
            AutoModelForCausalLM.from_pretrained(place / folder)
            for place in (ranks[0].folder, alone.folder)
        )
        torch.testing.assert_close(
            dict(mine.named_parameters()), dict(other.named_parameters()), **ROUNDING
        )


@stages
def test_bfloat16_training_stays_near_one_rank(sharded, expected, stage, assert_same_metrics):
    """Activations are summed over ranks in bfloat16. Weights may end one step of bfloat16 apart, 2^-8 of their size,
    and those near zero a fifth of a learning rate."""
    ranks, alone = sharded(stage, "mixed"), expected("mixed")

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), atol=2e-3, rtol=2**-7)
    assert_same_metrics(ranks, alone, atol=5e-3)


@stages
def test_a_critic_learns_values_like_one_rank(sharded, expected, stage, assert_same_rows):
    ranks, alone = sharded(stage, "critic"), expected("critic")

    assert_same_rows(ranks, alone, "values", atol=1e-5)
    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)


@stages
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restored_run_goes_on_to_the_bit(sharded, stage, dtype):
    for rank in sharded(stage, "resuming_shards"):
        assert rank.facts[f"restored {dtype}"]
        assert rank.facts[f"went on {dtype}"]


@stages
def test_a_rank_without_rows_takes_part(sharded, expected, stage):
    ranks, alone = sharded(stage, "few_rows"), expected("few_rows")

    torch.testing.assert_close(ranks[0].weights(), alone.weights(), **ROUNDING)
    assert ranks[1].tensors["before"].shape == (0,)


@stages
def test_a_reference_is_whole_on_every_rank(sharded, expected, stage, assert_same_rows):
    ranks, alone = sharded(stage, "reference"), expected("reference")

    assert_same_rows(ranks, alone, "logprobs")


@stages
def test_what_cannot_be_shared_is_refused(sharded, stage):
    for rank in sharded(stage, "unshared"):
        assert "DeepSpeed cannot share its matrices" in rank.facts["qwen3_moe"]
        assert "2 attention heads and 1 key heads" in rank.facts["shared_keys"]
        assert "Lamb needs whole parameters, but with backend" in rank.facts["qwen3"]
        assert "each rank has only a shard of them" in rank.facts["qwen3"]

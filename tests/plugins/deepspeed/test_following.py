"""A reference that follows the policy, kept by two ranks, against one rank of the torch backend."""

import pytest

pytestmark = [pytest.mark.scale, pytest.mark.slow]
# Stages 2 and 3 cut gradients and weights; what they share with the others the scenarios of rows have at each stage.
stages = pytest.mark.parametrize(
    "stage", [*(pytest.param(stage, marks=pytest.mark.matrix) for stage in (0, 1)), 2, 3]
)
# The ranks cut other micro-batches, whose bfloat16 gradients round differently.
dtypes = pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-5), ("bfloat16", 2e-2)])


@stages
@dtypes
def test_the_reference_is_that_of_one_rank(
    folder_of, read_ranks, expected, assert_same_rows, stage, dtype, atol
):
    ranks = read_ranks(folder_of("followed", stage), stage, "following")
    alone = expected("following")

    for name in (0, 1, 2, 3, 4, "end", "policy"):
        assert_same_rows(ranks, alone, f"{dtype}/{name}", atol=atol)
    moved = alone.tensors[f"{dtype}/end"] - alone.tensors[f"{dtype}/policy"]
    assert float(moved.abs().max()) > 2 * atol  # or the comparison would say nothing


@stages
@dtypes
def test_a_role_goes_on_with_its_reference_to_the_bit(folder_of, read_ranks, stage, dtype, atol):
    for rank in read_ranks(folder_of("followed", stage), stage, "following"):
        assert rank.facts[f"went on {dtype}"]

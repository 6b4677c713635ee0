"""A reference that follows the policy, kept by two ranks, against one rank of the torch backend."""

import pytest

pytestmark = pytest.mark.slow
# The ranks cut other micro-batches, whose bfloat16 gradients round differently.
dtypes = pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-5), ("bfloat16", 2e-2)])


@pytest.fixture(scope="module")
def ranks(run_ranks, read_ranks, tmp_path_factory):
    return read_ranks(run_ranks("followed", tmp_path_factory.mktemp("followed")), "following")


@dtypes
def test_the_reference_is_that_of_one_rank(ranks, expected, assert_same_rows, dtype, atol):
    alone = expected("following")

    for name in (0, 1, 2, 3, 4, "end", "policy"):
        assert_same_rows(ranks, alone, f"{dtype}/{name}", atol=atol)
    moved = alone.tensors[f"{dtype}/end"] - alone.tensors[f"{dtype}/policy"]
    assert float(moved.abs().max()) > 2 * atol  # or the comparison would say nothing


@dtypes
def test_a_role_goes_on_with_its_reference_to_the_bit(ranks, dtype, atol):
    for rank in ranks:
        assert rank.facts[f"went on {dtype}"]

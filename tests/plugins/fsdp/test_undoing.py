"""A step that fails on one of two ranks after its first update is undone on both."""

import pytest

pytestmark = pytest.mark.slow
KINDS = ("float32", "bfloat16", "whole", "whole_bfloat16", "muon")
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def folder(run_ranks, tmp_path_factory):
    return run_ranks("undone", tmp_path_factory.mktemp("undone"))


@kinds
def test_a_step_that_failed_on_one_rank_is_undone_on_both_to_the_bit(folder, read_ranks, kind):
    first, last = (rank.facts for rank in read_ranks(folder, "undoing"))

    assert last[f"error {kind}"] == "ValueError: this loss is broken"
    assert first[f"error {kind}"] == (
        "RLHFError: rank 1 of this role failed: ValueError: this loss is broken"
    )
    for facts in (first, last):
        assert facts[f"undone {kind}"]
        assert facts[f"weights {kind}"]
        assert facts[f"went on {kind}"]
    saved = folder / "undoing"
    files = [path.name for path in (saved / f"straight_{kind}").iterdir()]
    assert len(files) == 3  # a part of each rank, and what they share
    for name in files:
        straight, undone = (saved / f"{run}_{kind}" / name for run in ("straight", "undone"))
        assert straight.read_bytes() == undone.read_bytes(), name


@kinds
def test_a_role_goes_on_from_where_it_went_back_to(folder, read_ranks, kind):
    for rank in read_ranks(folder, "undoing_idle"):
        assert rank.facts[f"undone {kind} 0"]
        assert rank.facts[f"undone {kind} 1"]
        assert rank.facts[f"went on {kind}"]
        assert not rank.facts[f"too large {kind}"]

"""A step that fails on one of two ranks after its first update is undone on both, at every stage."""

import pytest

pytestmark = [pytest.mark.scale, pytest.mark.slow]
# Stages 2 and 3 cut gradients and weights; what they share with the others the scenarios of rows have at each stage.
stages = pytest.mark.parametrize(
    "stage", [*(pytest.param(stage, marks=pytest.mark.matrix) for stage in (0, 1)), 2, 3]
)
kinds = pytest.mark.parametrize("kind", ["float32", "bfloat16", "whole", "whole_bfloat16", "muon"])


@stages
@kinds
def test_a_step_that_failed_on_one_rank_is_undone_on_both_to_the_bit(
    folder_of, read_ranks, stage, kind
):
    folder = folder_of("undone", stage)
    first, last = (rank.facts for rank in read_ranks(folder, stage, "undoing"))

    assert last[f"error {kind}"] == "ValueError: this loss is broken"
    assert first[f"error {kind}"] == (
        "RLHFError: rank 1 of this role failed: ValueError: this loss is broken"
    )
    for facts in (first, last):
        assert facts[f"undone {kind}"]
        assert facts[f"weights {kind}"]
        assert facts[f"went on {kind}"]
    saved = folder / f"stage{stage}" / "undoing"
    files = [path.name for path in (saved / f"straight_{kind}").iterdir()]
    assert files
    for name in files:
        straight, undone = (saved / f"{run}_{kind}" / name for run in ("straight", "undone"))
        assert straight.read_bytes() == undone.read_bytes(), name


@stages
@kinds
def test_a_role_goes_on_from_where_it_went_back_to(folder_of, read_ranks, stage, kind):
    for rank in read_ranks(folder_of("undone", stage), stage, "undoing_idle"):
        assert rank.facts[f"undone {kind} 0"]
        assert rank.facts[f"undone {kind} 1"]
        assert rank.facts[f"went on {kind}"]
        assert not rank.facts[f"too large {kind}"]

"""A disk that is full for one of two ranks: all ranks say so, none waits, and the role goes on as if nothing was."""

import pytest

pytestmark = [pytest.mark.scale, pytest.mark.slow]
stages = pytest.mark.parametrize("stage", [0, pytest.param(1, marks=pytest.mark.matrix), 2, 3])
RANKS = (0, 1)
REASON = "File too large"


@pytest.fixture
def folder(folder_of):
    return lambda stage: folder_of("full", stage)


@pytest.fixture
def facts(folder, read_ranks):
    return lambda stage: [rank.facts for rank in read_ranks(folder(stage), stage, "full_disk")]


@stages
@pytest.mark.parametrize("what", ["save", "export"])
@pytest.mark.parametrize("full", RANKS)
def test_every_rank_raises_the_error_of_the_one_that_cannot_write(facts, stage, what, full):
    """The first rank alone writes exports, and at stage 0 checkpoints."""
    writes = full == 0 or (what == "save" and stage > 0)

    for rank, found in enumerate(facts(stage)):
        told = found[f"{what} {full}"]
        assert told.startswith("StorageError: ") == writes
        assert (REASON in told) == writes
        assert (f"rank {full} of this role failed" in told) == (writes and rank != full)


@stages
def test_the_role_goes_on_and_writes_the_files_of_one_that_had_room(facts, folder, stage):
    assert all(found["went on"] for found in facts(stage))
    saved = folder(stage) / f"stage{stage}" / "full_disk"
    names = sorted(path.name for path in (saved / "straight").iterdir())
    assert names
    assert sorted(path.name for path in (saved / "short").iterdir()) == names
    for name in names:
        assert (saved / "short" / name).read_bytes() == (saved / "straight" / name).read_bytes()

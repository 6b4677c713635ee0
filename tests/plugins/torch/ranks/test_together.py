"""What one of two ranks raises alone ends the call on both, a failed write as the same error."""

import errno
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch
import torch.distributed as dist
from tests.deadlines import HANG_S

from rlhf_core import StorageError
from rlhf_torch.ranks.ranks import Ranks

FULL = OSError(errno.ENOSPC, "No space left on device")


def _seen(rank: int, meeting: str, failing: int, failure: Exception | None, way: str) -> list[str]:
    """Return what this rank gets from a body that fails on one rank, and from one after it in which nobody fails."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    ranks = Ranks(rank, 2, torch.device("cpu"))
    seen = []
    for failed in (failure, None):
        try:
            with getattr(ranks, way)():
                if failed is not None and rank == failing:
                    raise failed
            seen.append("went on")
        except Exception as error:
            seen.append(f"{type(error).__name__}: {error}")
    dist.barrier()
    dist.destroy_process_group()
    return seen


@pytest.fixture(scope="module")
def two_processes():
    """Two that inherit no process group of this one."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield pool


@pytest.fixture
def both(tmp_path, two_processes):
    """What both ranks see, in processes of their own."""

    def run(*arguments):
        meeting = str(tmp_path / "meeting")
        waiting = [two_processes.submit(_seen, rank, meeting, *arguments) for rank in range(2)]
        return [each.result(timeout=HANG_S) for each in waiting]

    return run


@pytest.mark.parametrize("failing", [0, 1])
def test_a_write_that_fails_on_one_rank_is_a_failed_write_on_both(both, failing):
    reason = "No space left on device. Make room there, and start again"

    seen = both(failing, FULL, "writing_together")

    assert seen[failing] == [f"FailedWrite: {reason}", "went on"]
    other = f"FailedWrite: rank {failing} of this role failed: FailedWrite: {reason}"
    assert seen[1 - failing] == [other, "went on"]


@pytest.mark.parametrize(
    ("failure", "raised"),
    [(ValueError("a shape"), "RLHFError"), (StorageError("no room"), "FailedWrite")],
)
def test_another_error_of_one_rank_ends_the_others_too(both, failure, raised):
    seen = both(0, failure, "together")

    told = f"{type(failure).__name__}: {failure}"
    assert seen[0] == [told, "went on"]
    assert seen[1] == [f"{raised}: rank 0 of this role failed: {told}", "went on"]

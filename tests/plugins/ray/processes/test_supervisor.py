"""Waits end when the run cannot go on, also those that wait for no answer of a process."""

import asyncio
import errno

import pytest
from safetensors import SafetensorError
from tests.deadlines import HANG_S

from rlhf_core import CheckpointError, RLHFError, StorageError
from rlhf_core.storage import writing

pytest.importorskip("ray")
pytestmark = pytest.mark.scale

from ray.exceptions import RayTaskError  # noqa: E402  (after importorskip)

from rlhf_plugin_ray.processes.crew import Crew  # noqa: E402
from rlhf_plugin_ray.processes.supervisor import ProcessLost, Supervisor, translated  # noqa: E402
from rlhf_testing.errors import has_code  # noqa: E402

LOST = ProcessLost("policy rank 0 died")


async def never(index):
    await asyncio.Event().wait()


def crew_of(supervisor):
    return Crew("engine", never, supervisor, max_restarts=1, option="max_engine_restarts")


def test_who_waits_for_an_engine_to_start_learns_that_the_run_is_over():
    async def play():
        supervisor = Supervisor()
        crew = crew_of(supervisor)
        starting = asyncio.create_task(crew.start_all(1))
        waiting = asyncio.create_task(crew.wait_for_one("generate"))
        await asyncio.sleep(0)
        assert not waiting.done()
        supervisor.fail(LOST)
        with pytest.raises(ProcessLost, match="policy rank 0 died"):
            async with asyncio.timeout(HANG_S):
                await waiting
        starting.cancel()

    asyncio.run(play())


def test_the_first_reason_is_the_one_that_is_told():
    supervisor = Supervisor()

    supervisor.fail(LOST)
    supervisor.fail(ProcessLost("another one, which waited for it"))

    assert supervisor.failure is LOST


def test_an_error_gives_way_to_the_death_that_caused_it_and_stays_without_one():
    connection_closed = RLHFError("connection closed by peer")

    async def play():
        supervisor = Supervisor()
        assert await supervisor.cause_of(connection_closed, 0.1) is connection_closed
        cause = asyncio.create_task(supervisor.cause_of(connection_closed, HANG_S))
        await asyncio.sleep(0)
        supervisor.fail(LOST)
        assert await cause is LOST

    asyncio.run(play())


def raised_by_a_rank(cause):
    """As Ray gives it to the driver, without Ray: the cause was pickled."""
    return RayTaskError("save", "the remote traceback", cause, "actor", 1, "127.0.0.1")


@pytest.mark.parametrize(
    "cause",
    [
        OSError(errno.ENOSPC, "No space left on device", "policy/optimizer.safetensors"),
        SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        ),
        Exception("No space left on device (os error 28)"),
    ],
)
def test_a_disk_without_room_at_a_rank_is_the_error_that_it_is_in_one_process(cause):
    told = translated(raised_by_a_rank(cause), "policy rank 0")

    assert isinstance(told, StorageError)
    expected = "policy rank 0: No space left on device. Make room there, and start again"
    assert str(told) == expected
    with (
        pytest.raises(
            CheckpointError,
            match=f"^the checkpoint could not be written: {expected}$",
            check=has_code("output/not-written"),
        ),
        writing("the checkpoint", error=CheckpointError),
    ):
        raise told


class Spilled(RLHFError, code="run/spilled"):
    """A user's error, which takes its message alone."""

    def __init__(self, message):
        super().__init__(message)


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (Spilled("of the cup"), "run/spilled"),
        (CheckpointError("damaged", code="checkpoint/other-run"), "checkpoint/other-run"),
    ],
)
def test_an_error_of_a_rank_keeps_its_class_and_its_code(cause, code):
    told = translated(raised_by_a_rank(cause), "policy rank 0")

    assert type(told) is type(cause)
    assert told.code == code
    assert str(told) == f"policy rank 0: {cause}"


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file", "model"), RLHFError),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), RLHFError),
        (ValueError("a shape"), RLHFError),
        (StorageError("policy could not be written: Permission denied"), StorageError),
        (CheckpointError("damaged"), CheckpointError),
    ],
)
def test_another_error_of_a_rank_keeps_its_class_or_has_none(cause, expected):
    told = translated(raised_by_a_rank(cause), "policy rank 0")

    assert type(told) is expected
    assert str(cause) in str(told)

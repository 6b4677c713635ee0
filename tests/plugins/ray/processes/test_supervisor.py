"""Waits end when the run cannot go on, also those that wait for no answer of a process."""

import asyncio

import pytest
from tests.deadlines import HANG_S

from rlhf_core import RLHFError

pytest.importorskip("ray")
pytestmark = pytest.mark.scale

from rlhf_plugin_ray.processes.crew import Crew  # noqa: E402  (after importorskip)
from rlhf_plugin_ray.processes.supervisor import ProcessLost, Supervisor  # noqa: E402

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

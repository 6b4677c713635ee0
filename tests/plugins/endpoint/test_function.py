"""Agents that end as no function should: theirs is the episode that failed, and no other."""

import asyncio
import sys
from dataclasses import replace

import httpx
import pytest
from tests.deadlines import HANG_S

from rlhf_core import RolloutError
from rlhf_testing.errors import has_code


def exits(context):
    sys.exit(3)


def interrupts(context):
    raise KeyboardInterrupt


async def exits_later(context):
    await asyncio.sleep(0)
    sys.exit(3)


async def cancels_itself(context):
    raise asyncio.CancelledError


async def exits_in_a_task(context):
    async def task():
        sys.exit(3)

    await asyncio.create_task(task())


async def looks_twice(context):
    async def look():
        raise FileNotFoundError("no notes.txt")

    async with asyncio.TaskGroup() as group:
        group.create_task(look())
        group.create_task(asyncio.Event().wait())


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        (exits, "raised SystemExit: 3"),
        (interrupts, "raised KeyboardInterrupt"),
        (exits_later, "raised SystemExit: 3"),
        (cancels_itself, "raised CancelledError"),
        (exits_in_a_task, "raised SystemExit: 3"),
        (looks_twice, "raised FileNotFoundError: no notes.txt"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_agent_that_exits_or_cancels_itself_fails_its_episode(play, agent, says):
    with pytest.raises(RolloutError, match=says, check=has_code("agent/failed")):
        play(agent)


async def asks(context):
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        reply = await client.post(
            f"{context.base_url}/chat/completions",
            json={"model": context.model, "messages": [{"role": "user", "content": "hi"}]},
            headers={"authorization": f"Bearer {context.api_key}"},
        )
    return float(reply.status_code == 200)


@pytest.mark.parametrize(
    "wrong", [exits_later, cancels_itself, exits_in_a_task], ids=lambda each: each.__name__
)
def test_other_episodes_go_on_beside_a_coroutine_that_exits(play, wrong):
    """All coroutines share an event loop, which has to live on."""
    dropped = {}

    async def agent(context):
        if int(context.uid.split(".")[2]) % 2:
            return await wrong(context)
        await asyncio.sleep(0.05)
        return await asks(context)

    context = replace(play.context(), drop=dropped.__setitem__)
    rows = play(agent, samples=range(8), on_error="drop", episode_timeout_s=HANG_S, context=context)

    assert [row.uid.sample for row in rows] == [0, 2, 4, 6]
    assert [row.total_reward for row in rows] == [1.0] * 4
    assert [uid.sample for uid in dropped] == [1, 3, 5, 7]

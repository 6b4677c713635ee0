"""Sessions that all episodes of a process share: one for each server and event loop, opened anew after a death."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from .server import McpServer
from .session import McpSession

_OPEN: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Task[McpSession]]] = (
    WeakKeyDictionary()
)


async def open_sessions(servers: Sequence[McpServer]) -> tuple[list[McpSession], list[McpSession]]:
    """Return the sessions of an episode: all of them, and those that the episode has to close.

    Raises:
        RolloutError: a server cannot be reached; the sessions that were opened for the episode are closed.
        MissingDependency: the SDK is not installed.
    """
    sessions: list[McpSession] = []
    own: list[McpSession] = []
    try:
        for server in servers:
            if server.shared:
                sessions.append(await _shared(server))
            else:
                own.append(await McpSession.open(server))
                sessions.append(own[-1])
    except BaseException:
        await close_sessions(own)
        raise
    return sessions, own


async def close_sessions(sessions: Sequence[McpSession]) -> None:
    """Close sessions, all of them at once."""
    await asyncio.gather(*(session.close() for session in sessions))


async def _shared(server: McpServer) -> McpSession:
    """Return the living session of a server; episodes that come while it is opened wait for it."""
    loop = asyncio.get_running_loop()
    opened = _OPEN.setdefault(loop, {})
    key = server.model_dump_json()
    task = opened.get(key)
    if task is None or (task.done() and not _lives(task)):
        # A task of its own: an episode that is cancelled must not take the others' session along.
        task = opened[key] = asyncio.create_task(McpSession.open(server))
    return await asyncio.shield(task)


def _lives(task: asyncio.Task[McpSession]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().alive

"""The listening socket, on this machine alone, and the sweep over its connections."""

from __future__ import annotations

import asyncio
import contextlib

from .connection import HttpConnection
from .exchange import Handler, HttpLimits, Refusal

SWEEP_S = 1.0
"""Seconds between two looks at the deadlines of connections."""


class HttpServer:
    """A server on a random port of 127.0.0.1.

    Args:
        handler: answers requests; called once for each, concurrently for different connections.
        refusal: makes the reply to a request that never reached the handler.
    """

    def __init__(self, handler: Handler, refusal: Refusal, limits: HttpLimits) -> None:
        self._handler, self._refusal, self._limits = handler, refusal, limits
        self._connections: set[HttpConnection] = set()
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """Port that the server listens on."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def num_connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    async def start(self) -> None:
        """Listen, in the running event loop."""
        loop = asyncio.get_running_loop()

        def connection() -> HttpConnection:
            return HttpConnection(
                self._handler,
                self._refusal,
                self._limits,
                loop.time,
                joined=self._join,
                left=self._connections.discard,
            )

        self._server = await loop.create_server(connection, "127.0.0.1", 0, backlog=1024)
        self._sweep = loop.create_task(self._expire_all())

    async def close(self) -> None:
        """Stop listening, and close every connection; requests in work are cancelled."""
        if self._server is None or self._sweep is None:
            return
        self._sweep.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sweep
        self._server.close()
        for connection in list(self._connections):
            connection.close()
        # Aborted transports report their loss in the next turn of the loop.
        await asyncio.sleep(0)
        self._server = self._sweep = None

    def _join(self, connection: HttpConnection) -> bool:
        self._connections.add(connection)
        return len(self._connections) <= self._limits.max_connections

    async def _expire_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(SWEEP_S, self._limits.receive_timeout_s))
            now = loop.time()
            for connection in list(self._connections):
                connection.expire(now)

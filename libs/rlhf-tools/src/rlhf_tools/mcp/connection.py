"""The SDK's client of a server. Imports the SDK, and is imported where a session is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TextIO

import httpx2
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from .server import McpServer

_CONNECT_S = 10.0


@asynccontextmanager
async def connected(server: McpServer, errors: TextIO) -> AsyncIterator[Client]:
    """Yield a client whose handshake is done; leaving ends the session, and a local server with its processes.

    Args:
        errors: open file for what a local server writes to stderr.
    """
    if server.command:
        command, *arguments = server.command
        parameters = StdioServerParameters(command=command, args=arguments, env=dict(server.env))
        async with Client(stdio_client(parameters, errlog=errors), cache=None) as client:
            yield client
        return
    # Responses may stay open as long as a call may take.
    timeout = httpx2.Timeout(_CONNECT_S, read=server.timeout_s + _CONNECT_S)
    async with (
        httpx2.AsyncClient(headers=dict(server.headers), timeout=timeout) as http,
        Client(streamable_http_client(server.url, http_client=http), cache=None) as client,
    ):
        yield client

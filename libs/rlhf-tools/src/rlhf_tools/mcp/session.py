"""A session with an MCP server: its tools, its calls, and its death, which is an error of the environment.

The SDK's client has to be left by the task that entered it, so each session is a task of its own, which waits until the
session is closed. It ends with the event loop at the latest, and a local server ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlhf_core import MissingDependency, RolloutError

from ..results import ToolFailure, ToolResult
from ..tool import Tool
from .server import McpServer

if TYPE_CHECKING:
    from mcp import Client

_LOG = logging.getLogger(__name__)

_MAX_PAGES = 100
_CLOSE_S = 15.0
"""Seconds until a session that is closed has to be gone; the SDK gives a local server about six."""


class McpSession:
    """An open session. Made by ``open``."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.alive = False
        self.tools: tuple[Tool, ...] = ()
        self._client: Client | None = None
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._errors = tempfile.TemporaryFile(  # noqa: SIM115
            "w+", encoding="utf-8", errors="replace"
        )
        self._said = ""
        self._owner = asyncio.create_task(self._own(), name=f"MCP server {server.name}")

    @classmethod
    async def open(cls, server: McpServer) -> McpSession:
        """Return a session whose server has listed its tools.

        Raises:
            RolloutError: it did not within ``start_s``, or lists none of the tools that are wanted.
            MissingDependency: the SDK is not installed.
        """
        session = cls(server)
        try:
            async with asyncio.timeout(server.start_s):
                await asyncio.shield(session._opened)
        except TimeoutError as error:
            await session.close()
            raise session._error(f"did not list its tools within {server.start_s:g} s") from error
        except BaseException:
            await session.close()
            raise
        return session

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the server's answer to a call.

        Raises:
            RolloutError: the server is gone, or answered with something that the protocol does not allow.
        """
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        if not self.alive or self._client is None:
            raise self._error("is gone")
        try:
            result = await self._client.call_tool(name, dict(arguments))
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                return ToolResult.failed(ToolFailure.FAILED, error.message)
            self._die()
            raise self._error(f"died during a call of {name}: {error.message}") from error
        except Exception as error:
            self._die()
            raise self._error(f"broke off a call of {name}: {_first(error)}") from error
        text = _text(result)
        return (
            ToolResult.failed(ToolFailure.FAILED, text)
            if result.is_error
            else ToolResult(text=text)
        )

    async def close(self) -> None:
        """End the session, and a local server with it."""
        self._die()
        if self._client is None:
            self._owner.cancel()  # it waits for the server, not for the end of the session
        _, pending = await asyncio.wait({self._owner}, timeout=_CLOSE_S)
        if pending:
            self._owner.cancel()
            _LOG.warning("MCP server %s did not end within %g s", self.server.name, _CLOSE_S)

    def _die(self) -> None:
        self.alive = False
        self._stop.set()

    async def _own(self) -> None:
        """Enter the client, list its tools, wait until the session is closed, leave the client."""
        try:
            from .connection import connected

            async with connected(self.server, self._errors) as client:
                self.tools = await self._listed(client)
                self._client, self.alive = client, True
                if not self._opened.done():
                    self._opened.set_result(None)
                await self._stop.wait()
        except RolloutError as error:
            self._opened.set_exception(error)
        except ImportError as error:
            self._opened.set_exception(
                MissingDependency(
                    f"MCP servers need the packages of an extra ({error}). Install them: pip install 'rlhf-tools[mcp]'"
                )
            )
        except Exception as error:
            if self._opened.done():
                _LOG.warning("MCP server %s: closing failed: %s", self.server.name, _first(error))
            else:
                self._opened.set_exception(
                    self._error(f"could not be reached: {_first(error)}", cause=error)
                )
        finally:
            self.alive = False
            self._said = self._tail()
            self._errors.close()

    async def _listed(self, client: Client) -> tuple[Tool, ...]:
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += [self._tool(one) for one in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                break
        names = {tool.name.removeprefix(self.server.prefix) for tool in tools}
        missing = set(self.server.only) - names
        if missing:
            raise self._error(
                f"has no tool {', '.join(sorted(missing))}; it has {', '.join(sorted(names)) or 'none'}"
            )
        only = {self.server.prefix + name for name in self.server.only}
        return tuple(tool for tool in tools if not only or tool.name in only)

    def _tool(self, described: Any) -> Tool:
        name: str = described.name

        async def run(arguments: Mapping[str, Any]) -> ToolResult:
            return await self.call(name, arguments)

        return Tool(
            name=self.server.prefix + name,
            description=described.description or described.title or name,
            parameters=described.input_schema,
            run=run,
            timeout_s=self.server.timeout_s,
        )

    def _error(self, what: str, cause: BaseException | None = None) -> RolloutError:
        place = self.server.url or " ".join(self.server.command)
        said = self._said if self._errors.closed else self._tail()
        error = RolloutError(
            f"MCP server {self.server.name} ({place}) {what}"
            + (f". It wrote: {said}" if said else ""),
            code="tool/server-failed",
        )
        error.__cause__ = cause
        return error

    def _tail(self) -> str:
        """Return the end of what a local server wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read().strip()[-500:]


def _text(result: Any) -> str:
    """Return the texts of a result; what is no text (an image) is named, since the policy reads text alone."""
    parts = []
    for block in result.content:
        resource = getattr(block, "resource", None)
        text = getattr(block, "text", None) or getattr(resource, "text", None)
        parts.append(text if text is not None else f"[{block.type}: not shown]")
    if not parts and result.structured_content is not None:
        from pydantic_core import to_json

        return to_json(result.structured_content).decode("utf-8")
    return "\n".join(parts)


def _first(error: BaseException) -> str:
    """Return the type and message of the first error in nested groups of them, which the SDK's tasks raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"

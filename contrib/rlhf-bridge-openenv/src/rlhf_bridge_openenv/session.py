"""A session with a server: one WebSocket, one environment there, one question at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from rlhf_core import RolloutError

from .address import Address
from .http import Limits, parsed

_CLOSE_S = 5.0
_TOO_BIG = 1009
"""Code with which a WebSocket is closed that got too large a message."""


class Refusal(Exception):
    """The server answered with an error. The session goes on, unless the server ended it."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class OpenEnvSession:
    """An open session. Made by ``open_session``."""

    def __init__(self, connection: ClientConnection, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits

    async def ask(self, kind: str, data: Mapping[str, Any] | None, expected: str) -> dict[str, Any]:
        """Return the ``data`` of the answer, whose type is ``expected``.

        Raises:
            Refusal: the server answered with an error.
            RolloutError: the line broke, the answer took too long, is too large, or is none.
        """
        message: dict[str, Any] = {"type": kind}
        if data is not None:
            message["data"] = data
        try:
            async with asyncio.timeout(self._limits.answer_s):
                # A server without room says so and hangs up, maybe before the question; what it said can still be read.
                with suppress(ConnectionClosed):
                    await self._connection.send(json.dumps(message))
                raw = await self._connection.recv()
        except TimeoutError as error:
            raise RolloutError(
                f"did not answer {kind} within {self._limits.answer_s:g} s",
                code="environment/too-slow",
            ) from error
        except ConnectionClosed as error:
            raise RolloutError(self._closed(kind, error), code="environment/closed") from error
        answer = parsed(raw, kind)
        body = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(body, dict):
            raise RolloutError(
                f"answered {kind} with {raw!r:.200}; expected an object with type and data",
                code="environment/wrong-message",
            )
        if answer.get("type") == "error":
            raise Refusal(str(body.get("code", "")), f"{_reason(body):.2000}")
        if answer.get("type") != expected:
            raise RolloutError(
                f"answered {kind} with the type {answer.get('type')!r:.50}; expected {expected}",
                code="environment/wrong-message",
            )
        return body

    async def close(self) -> None:
        """Say goodbye and hang up; a server that does not answer is left."""
        with suppress(WebSocketException, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._connection.send(json.dumps({"type": "close"}))
                await self._connection.close()
        self._connection.transport.abort()

    def _closed(self, kind: str, error: ConnectionClosed) -> str:
        if error.sent is not None and error.sent.code == _TOO_BIG:
            limit = self._limits.max_bytes / 2**20
            return f"answered {kind} with more than {limit:g} MiB (max_message_mib)"
        return f"ended the session instead of an answer to {kind} ({error})"


async def open_session(address: Address, limits: Limits) -> OpenEnvSession:
    """Return a new session.

    Raises:
        RolloutError: there is no such server, or it does not speak the protocol.
    """
    try:
        connection = await connect(
            address.web_socket,
            additional_headers=address.headers,
            open_timeout=limits.answer_s,
            close_timeout=_CLOSE_S,
            max_size=limits.max_bytes,
            max_queue=1,
            # A server may compute for minutes without answering a ping; each answer has its own deadline.
            ping_interval=None,
            compression=None,
            proxy=None,
        )
    except (OSError, WebSocketException, TimeoutError) as error:
        raise RolloutError(
            f"cannot be reached for a session ({type(error).__name__}: {error})",
            code="environment/unreachable",
        ) from error
    return OpenEnvSession(connection, limits)


def _reason(body: Mapping[str, Any]) -> str:
    text = str(body.get("message", ""))
    found = body.get("errors")
    problems = found if isinstance(found, list) else []
    problems = [
        f"{'.'.join(map(str, problem.get('loc', ())))}: {problem.get('msg', '')}"
        for problem in problems[:5]
        if isinstance(problem, dict)
    ]
    return "; ".join([text, *problems])

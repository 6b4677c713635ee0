"""Server of an environment: connections of runs over TCP, each greeted with a token before anything else is read."""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from rlhf_core.component import Registered
from rlhf_core.contracts.environment import Environment
from rlhf_core.errors import ConfigError
from rlhf_core.problem import Problem, ProblemKind, problem_of
from rlhf_core.storage import writing

from .frames import FrameError, packed, read_frame
from .hello import MadeEnvironment, open_environment
from .messages import Plain, problem_fields
from .server import EpisodeServer

HELLO_LIMIT_S = 10.0
"""Time in which a connection has to say who it is."""
MAX_HELLO_BYTES = 2**20
"""Largest number of bytes of the first message, which anybody may send."""
MAX_CONNECTIONS = 256
"""Largest number of connections that have shown the token."""
MAX_STRANGERS = 64
"""Largest number of connections that have not yet said who they are. Another one takes the place of the oldest, so that
nobody without a token keeps out others."""
MIN_TOKEN_LENGTH = 16

log = logging.getLogger(__name__)


def token_of(path: Path) -> str:
    """Return the token in a file, which is made, for its owner's eyes alone, if there is none.

    Raises:
        ConfigError: the file cannot be read or written, or its token is too short.
    """
    try:
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with (
                writing(f"token file {path}", path, error=ConfigError),
                os.fdopen(descriptor, "w", encoding="ascii") as file,
            ):
                file.write(secrets.token_urlsafe(32) + "\n")
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"token file {path}: expected a file to read, or a place for one ({error})",
            code="environment/token",
        ) from error
    if len(token) < MIN_TOKEN_LENGTH:
        raise ConfigError(
            f"token file {path}: expected a token of at least {MIN_TOKEN_LENGTH} characters, got {len(token)}",
            code="environment/short-token",
        )
    return token


class EnvironmentListener:
    """Serves one environment to runs that know the token. Each connection has episodes and options of its own.

    Args:
        registered: the environment.
        token: what the first message of a connection has to hold.
    """

    def __init__(self, registered: Registered[Environment], token: str) -> None:
        self._registered = registered
        self._token = token
        self._connections: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """Connections that have not yet shown the token, the oldest first."""

    async def serve(self, host: str, port: int, on_ready: Callable[[int], None]) -> None:
        """Answer connections until this is cancelled; then close all episodes.

        Args:
            port: 0 for any that is free.
            on_ready: called with the port once connections are taken.

        Raises:
            ConfigError: the address cannot be listened at.
        """
        try:
            server = await asyncio.start_server(self._connected, host, port)
        except OSError as error:
            # The error for a host that is none of this machine's depends on the system, that for a port does not.
            is_taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
            way = "--port, or 0 for any that is free" if is_taken else "--host of this machine"
            raise ConfigError(
                f"expected an address to listen at, got {host}:{port} ({error.strerror or error}). Choose "
                f"another {way}",
                code="environment/cannot-listen",
            ) from error
        try:
            on_ready(server.sockets[0].getsockname()[1])
            await asyncio.Event().wait()
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._strangers) >= MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            log.warning("a connection without a greeting was ended: there are %d", MAX_STRANGERS)
            self._strangers.pop(oldest).transport.abort()
        task = asyncio.create_task(self._answer(reader, writer))
        self._connections.add(task)
        self._strangers[task] = writer
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._strangers.pop(task, None)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        try:
            made = await self._greeted(reader, writer)
            task = asyncio.current_task()
            assert task is not None
            self._strangers.pop(task, None)
            if made is not None:
                await EpisodeServer(made.make, reader, writer).serve()
        except TimeoutError:
            log.warning("%s sent no greeting within %g s", peer, HELLO_LIMIT_S)
        except (FrameError, EOFError, OSError) as error:
            log.warning("the connection of %s broke: %s: %s", peer, type(error).__name__, error)
        finally:
            writer.close()

    async def _greeted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> MadeEnvironment | None:
        """Return the environment with the options of a connection; None: its greeting was refused, and it was told."""
        async with asyncio.timeout(HELLO_LIMIT_S):
            hello = await read_frame(reader, MAX_HELLO_BYTES)
        if hello is None:
            return None
        made = None
        problem = self._refusal(hello)
        known = len(self._connections) - len(self._strangers)
        if problem is None and known >= MAX_CONNECTIONS:
            problem = _refused(f"serves {MAX_CONNECTIONS} connections, and takes no more")
        if problem is None:
            try:
                made = open_environment(hello, self._registered)
            except Exception as error:
                problem = problem_of(error)
        answer: Plain = {"ok": made.greeting} if made is not None else {}
        if problem is not None:
            answer = {"problem": problem_fields(problem)}
        writer.write(packed({"id": hello.get("id"), **answer}))
        await writer.drain()
        return made

    def _refusal(self, hello: Plain) -> Problem | None:
        token = hello.get("token")
        given = token if isinstance(token, str) else ""
        if not hmac.compare_digest(given.encode(errors="replace"), self._token.encode()):
            return _refused("was given a wrong token; expected the one in its token file")
        name = hello.get("environment")
        wanted = name.rpartition(":")[2] if isinstance(name, str) else ""
        if wanted not in (self._registered.name, *self._registered.component.aliases):
            return _refused(f"serves {self._registered.name}, not {name!r:.60}")
        return None


def _refused(text: str) -> Problem:
    return Problem(kind=ProblemKind.RETURNED, text=text)

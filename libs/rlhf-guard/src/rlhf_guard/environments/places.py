"""Places where episodes run outside of this process: a worker process under guard, or a server behind an address."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from rlhf_config.isolation import IsolationOptions
from rlhf_core.component import ComponentRef
from rlhf_core.errors import ConfigError, PluginError
from rlhf_core.problem import Problem, ProblemKind

from ..processes.guarded import GuardedProcess
from ..processes.variables import with_hint, worker_variables
from .connection import Connection, RequestFailed
from .hello import hello_fields, require_protocol
from .messages import Plain

CONNECT_LIMIT_S = 30.0
"""Time in which a server has to be reached; it may be just starting again."""
TOKEN_VARIABLE = "RLHF_ENV_TOKEN"

_RETRY_S = 0.5
_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
)


class EpisodePlace(Protocol):
    """A worker or a server, which can be opened again after it ended."""

    label: str
    """Words for messages: "worker process 2"."""

    async def open(self) -> tuple[Connection, Plain]:
        """Return a connection to it, and its greeting.

        Raises:
            RLHFError: it cannot be reached, or lacks the environment.
        """

    async def close(self) -> None:
        """End the connection, and the process if there is one."""


def places_of(environment: ComponentRef, options: IsolationOptions) -> list[EpisodePlace]:
    """Return the places that the options name.

    Raises:
        ConfigError: there is no such interpreter, address or token.
    """
    if options.isolation == "remote":
        token = read_token(options.token_file)
        limit_s = options.start_timeout_s
        return [ServerPlace(environment, address, token, limit_s) for address in options.address]
    python = interpreter(options.python) if options.python is not None else None
    return [
        ProcessPlace(
            environment,
            f"worker process {index + 1}",
            python,
            options.start_timeout_s,
            options.pass_env,
        )
        for index in range(options.workers)
    ]


def interpreter(path: str) -> str:
    """Return the Python interpreter at a path, which is one or a virtual environment's folder.

    Raises:
        ConfigError: there is none.
    """
    found = Path(path).expanduser()
    if found.is_dir():
        found = found / "bin" / "python"
    if not (found.is_file() and os.access(found, os.X_OK)):
        raise ConfigError(
            f"python = {path!r}: expected a Python interpreter, or the folder of a virtual environment; {found} is "
            f"none.\n  python3 -m venv {path}",
            code="environment/no-interpreter",
        )
    return str(found.absolute())


def read_token(file: str | None) -> str:
    """Return the token of servers, from a file or from the variable.

    Raises:
        ConfigError: there is none.
    """
    if file is not None:
        try:
            token = Path(file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"token_file {file}: expected a file with a token ({error})",
                code="environment/token",
            ) from error
    else:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise ConfigError(
            f"expected a token for the servers of environments in the variable {TOKEN_VARIABLE}, or in a file that "
            "token_file names; got none. rlhf env serve --token-file FILE writes one",
            code="environment/no-token",
        )
    return token


class ProcessPlace:
    """A worker process of the run's interpreter, or of another one.

    Args:
        python: the interpreter; None: the run's own, with the run's ``sys.path``.
        start_limit_s: time for the start of the process and of the environment in it.
        pass_env: names of variables that it gets beside the usual ones.
    """

    def __init__(
        self,
        environment: ComponentRef,
        label: str,
        python: str | None,
        start_limit_s: float,
        pass_env: Sequence[str] = (),
    ) -> None:
        self.label = label
        self._environment = environment
        self._python = python
        variables = worker_variables(pass_env)
        self._variables = variables if python is None else _clean_variables(variables)
        self._start_limit_s = start_limit_s
        self._process = GuardedProcess(f"{environment.name}, {label}")
        self._connection: Connection | None = None

    async def open(self) -> tuple[Connection, Plain]:
        """Start the process and build the environment in it."""
        await self.close()
        if self._python is None:
            command, path = [sys.executable, "-P"], list(sys.path)
        else:
            # Isolated from variables and from the user's site: only what the interpreter's own environment has counts.
            command, path = [self._python, "-I"], None
        await self._process.start(
            [*command, "-m", "rlhf_guard.environments.worker"], environment=self._variables
        )
        reader, writer = self._process.reader, self._process.writer
        assert reader is not None
        assert writer is not None
        self._connection = Connection(reader, writer, self._broke)
        hello = hello_fields(self._environment, path=path, token=None)
        try:
            return self._connection, await greeted(self._connection, hello, self._start_limit_s)
        except RequestFailed as error:
            await self.close()
            raise self._not_started(error.problem) from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Kill the process and all that it started."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
        await self._process.stop()

    async def _broke(self, error: Exception) -> Problem:
        if isinstance(error, TimeoutError):
            problem = Problem(kind=ProblemKind.TIMED_OUT, text=str(error))
        else:
            problem = await self._process.death(error)
        await self._process.stop()
        return problem

    def _not_started(self, problem: Problem) -> PluginError:
        if problem.kind is ProblemKind.TIMED_OUT:
            return too_slow(self._environment, self.label, self._start_limit_s)
        problem = with_hint(problem, self._variables)
        text = f"environment {self._environment.name} could not be started in {self.label}: it {problem.text}"
        text += "".join(f"\n    {line}" for line in problem.where)
        if self._python is not None:
            text += (
                f"\nThe interpreter {self._python} needs to be of Python 3.11 or later, with rlhf-core and rlhf-guard, "
                "without torch, and the environment's package."
            )
        return PluginError(text, code="environment/not-started")


class ServerPlace:
    """A server that ``rlhf env serve`` started.

    Args:
        address: ``HOST:PORT``.
        start_limit_s: time for the server to answer the first request.
    """

    def __init__(
        self, environment: ComponentRef, address: str, token: str, start_limit_s: float
    ) -> None:
        self.label = f"server {address}"
        self._environment = environment
        self._host, _, port = address.rpartition(":")
        if not self._host or not port.isdigit():
            raise ConfigError(
                f"address {address!r}: expected HOST:PORT, such as 127.0.0.1:8000",
                code="environment/address",
            )
        self._port = int(port)
        self._token = token
        self._start_limit_s = start_limit_s
        self._connection: Connection | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> tuple[Connection, Plain]:
        """Connect, and greet the server.

        Raises:
            PluginError: the server does not answer in time, or does not serve the environment.
        """
        await self.close()
        reader, self._writer = await self._connected()
        self._connection = Connection(reader, self._writer, self._broke)
        hello = hello_fields(self._environment, path=None, token=self._token)
        try:
            return self._connection, await greeted(self._connection, hello, self._start_limit_s)
        except RequestFailed as error:
            await self.close()
            if error.problem.kind is ProblemKind.TIMED_OUT:
                raise too_slow(self._environment, self.label, self._start_limit_s) from error
            raise PluginError(
                f"environment {self._environment.name} is not served by {self.label}: it {error.problem.text}",
                code="environment/unreachable",
            ) from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the connection; the server then closes its episodes."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
        self._hang_up()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + CONNECT_LIMIT_S
        while True:
            try:
                async with asyncio.timeout_at(give_up):
                    reader, writer = await asyncio.open_connection(self._host, self._port)
                break
            except OSError as error:  # A TimeoutError is one.
                if loop.time() + _RETRY_S >= give_up:
                    raise PluginError(
                        f"environment {self._environment.name}: expected a server at {self._host}:{self._port}, which "
                        f"could not be reached for {CONNECT_LIMIT_S:g} s ({error or type(error).__name__}). Start it "
                        "with rlhf env serve",
                        code="environment/unreachable",
                    ) from error
                await asyncio.sleep(_RETRY_S)
        connection = writer.get_extra_info("socket")
        # A machine that vanished is found by the kernel, also while no request is on its way.
        for level, option, value in _SOCKET_OPTIONS:
            connection.setsockopt(level, option, value)
        return reader, writer

    async def _broke(self, error: Exception) -> Problem:
        self._hang_up()
        kind = ProblemKind.TIMED_OUT if isinstance(error, TimeoutError) else ProblemKind.DIED
        if isinstance(error, EOFError):
            return Problem(kind=kind, text="closed the connection")
        if isinstance(error, TimeoutError):
            return Problem(kind=kind, text=str(error))
        return Problem(kind=kind, text=f"broke the connection ({type(error).__name__}: {error})")

    def _hang_up(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(OSError):
                writer.transport.abort()


def too_slow(environment: ComponentRef, label: str, limit_s: float) -> PluginError:
    """Return the error of an environment that was not ready in time."""
    return PluginError(
        f"environment {environment.name} did not start within {limit_s:g} s in {label}; raise its start_timeout_s if "
        "it needs longer to load",
        code="environment/not-started",
    )


async def greeted(connection: Connection, hello: Plain, limit_s: float) -> Plain:
    """Return the answer to ``hello``.

    Raises:
        RequestFailed: the other side said no.
        PluginError: it speaks another version of the protocol.
    """
    greeting = await connection.call("hello", limit_s, **hello)
    require_protocol(greeting)
    return greeting


def _clean_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that point into the run's own virtual environment."""
    return {
        name: value
        for name, value in variables.items()
        if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    }

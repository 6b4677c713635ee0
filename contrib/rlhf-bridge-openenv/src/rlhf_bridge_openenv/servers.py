"""Servers that this process starts: one for each set of options, shared by all episodes, ended with the process."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path

from rlhf_core import ConfigError, RolloutError
from rlhf_guard.processes.program import GuardedProgram
from rlhf_guard.processes.variables import worker_variables

from .absent import absent_module, advice
from .address import Address, local_address
from .config import OpenEnvConfig
from .http import Limits, request

_RETRY_S = 0.1
_DEATH_S = 2.0
"""Time in which a server that cannot be reached is seen to have died, if it has."""
_OF_THE_RUN = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
"""Variables that point into the run's own interpreter."""

_SERVERS: dict[str, StartedServer] = {}
_LOCK = threading.Lock()


class StartedServer:
    """A server at 127.0.0.1 that is started when it is first needed, and again when it died.

    Raises:
        ConfigError: it has no interpreter or folder.
    """

    def __init__(self, config: OpenEnvConfig) -> None:
        self._config = config
        self._python = _interpreter(config.server_python)
        self._folder = _folder(config.server_folder)
        self._lock = threading.Lock()
        self._program: GuardedProgram | None = None
        self._address: Address | None = None
        self._starts = 0

    def address(self) -> Address:
        """Return the address of the running server. It blocks while the server starts.

        Raises:
            ConfigError: its interpreter lacks a package that it imports.
            RolloutError: it does not start, or died more often than it may.
        """
        with self._lock:
            if self._program is None or self._address is None or not self._program.alive:
                self._start()
            assert self._address is not None
            return self._address

    def has_died(self) -> bool:
        """Return whether the server is gone, a moment after it could not be reached. It blocks for that moment."""
        program = self._program
        give_up = time.monotonic() + _DEATH_S
        while program is not None and program.alive and time.monotonic() < give_up:
            time.sleep(_RETRY_S)
        return program is None or not program.alive

    def stop(self) -> None:
        """End the server and all that it started."""
        with self._lock:
            if self._program is not None:
                self._program.stop()
            self._program = self._address = None

    def _start(self) -> None:
        if self._starts > self._config.server_restarts:
            raise RolloutError(
                f"the server {self._words()} died {self._starts} times; expected at most "
                f"{self._config.server_restarts} restarts{self._said()}",
                code="environment/restarted-too-often",
            )
        if self._program is not None:
            self._program.stop()
        self._starts += 1
        with socket.socket() as listening:
            # The server of app inherits the socket, so nobody else gets its port between the two.
            listening.bind(("127.0.0.1", 0))
            port = listening.getsockname()[1]
            descriptor = listening.fileno() if self._config.app else None
            if descriptor is not None:
                listening.listen(2048)
            else:
                listening.close()
            self._program = GuardedProgram(
                self._command(port, descriptor),
                folder=self._folder,
                variables=self._variables(),
                descriptor=descriptor,
            )
        self._await_health(local_address(port))

    def _command(self, port: int, descriptor: int | None) -> list[str]:
        if descriptor is None:
            return [word.replace("{port}", str(port)) for word in self._config.command]
        command = [self._python, "-m", "uvicorn", self._config.app, "--fd", str(descriptor)]
        return [*command, "--log-level", "warning", "--timeout-graceful-shutdown", "1"]

    def _variables(self) -> dict[str, str]:
        own = {
            name: value
            for name, value in worker_variables().items()
            if not (self._config.server_python and name in _OF_THE_RUN)
        }
        return own | self._config.server_variables

    def _await_health(self, address: Address) -> None:
        assert self._program is not None
        give_up = time.monotonic() + self._config.start_s
        while self._program.alive:
            left = give_up - time.monotonic()
            if left <= 0:
                said = self._said()
                self._program.stop()
                raise RolloutError(
                    f"the server {self._words()} did not answer within {self._config.start_s:g} s (start_s){said}",
                    code="environment/too-slow",
                )
            try:
                limits = Limits(answer_s=left, max_bytes=2**20)
                if request(address, "GET", "/health", limits).status == 200:
                    self._address = address
                    return
            except (OSError, RolloutError):
                pass  # Not there yet; how long that may last is asked above.
            time.sleep(_RETRY_S)
        self._refuse_absence()
        raise RolloutError(
            f"the server {self._words()} ended before it answered{self._said()}",
            code="environment/not-started",
        )

    def _refuse_absence(self) -> None:
        assert self._program is not None
        module = absent_module(self._program.tail)
        if self._config.app and module is not None:
            raise ConfigError(
                f"the server {self._config.app} cannot start: {advice(module, self._config.app, self._python)}",
                code="environment/not-started",
            )

    def _words(self) -> str:
        return self._config.app or " ".join(self._config.command)

    def _said(self) -> str:
        lines = self._program.tail if self._program is not None else ()
        return "".join(f"\n    printed: {line}" for line in lines[-8:])


def started_server(config: OpenEnvConfig) -> StartedServer:
    """Return the server of these options that all episodes of this process share."""
    fields = {
        "app",
        "command",
        "server_python",
        "server_folder",
        "server_variables",
        "server_restarts",
    }
    key = config.model_dump_json(include=fields)
    with _LOCK:
        if key not in _SERVERS:
            _SERVERS[key] = StartedServer(config)
        return _SERVERS[key]


def stop_servers() -> None:
    """End all servers that this process started; the next episode starts its server anew."""
    with _LOCK:
        servers = list(_SERVERS.values())
        _SERVERS.clear()
    for server in servers:
        server.stop()


def _interpreter(path: str) -> str:
    if not path:
        return sys.executable
    found = Path(path).expanduser()
    if found.is_dir():
        found = found / "bin" / "python"
    if not (found.is_file() and os.access(found, os.X_OK)):
        raise ConfigError(
            f"server_python = {path!r}: expected a Python interpreter, or the folder of a virtual environment",
            code="environment/no-interpreter",
        )
    return str(found.absolute())


def _folder(path: str) -> Path | None:
    if not path:
        return None
    found = Path(path).expanduser()
    if not found.is_dir():
        raise ConfigError(
            f"server_folder = {path!r}: expected a folder", code="environment/no-folder"
        )
    return found

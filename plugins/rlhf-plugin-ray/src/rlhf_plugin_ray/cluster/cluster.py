"""Connection to an existing Ray cluster, or to a new one that ends with the run."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from rlhf_core import ConfigError
from rlhf_core.signals import SCHEDULER_WARNINGS, held_back
from rlhf_core.storage import TEMPORARY_VARIABLE

from ..config import RayRuntimeConfig
from . import own_cluster
from .joining import require_welcome
from .own_cluster import LOOPBACK, OwnFolder
from .reaper import start_reaper

ENVIRONMENT = {
    # Ray would report its usage over the network.
    "RAY_USAGE_STATS_ENABLED": "0",
    # A process that was given no GPU sees all GPUs of its machine. With "1", Ray warns of a coming change.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Environment variables of this process and its children. A variable that the user has set keeps its value."""
REAPER_LIMIT_S = 20.0
"""Seconds for the reaper to end what Ray has left."""


class RayCluster:
    """The connection of this process to Ray. A connection that existed before the run is used and left open."""

    def __init__(self, config: RayRuntimeConfig) -> None:
        self._config = config
        self._folder: OwnFolder | None = None
        """Folder of our own cluster; None without such a cluster."""
        self._was_connected = False
        self._reaper: subprocess.Popen[bytes] | None = None
        """Process that ends our own cluster, and removes its folder, if this process is killed."""
        self._variables: tuple[str, ...] = ()
        """Names of variables that this process has for our own cluster only."""

    def open(self) -> None:
        """Connect, or start a cluster.

        Raises:
            ConfigError: there is no cluster at the address, or Ray could not be started.
        """
        self._was_connected = ray.is_initialized()
        if self._was_connected:
            return
        if (address := self._address()) is None:
            self._start()
            return
        address = require_welcome(address, self._config.preflight_timeout_s)
        _set_defaults(ENVIRONMENT)
        try:
            self._init(address=address)
        except Exception as error:  # Ray's errors have no common base class; some are bare
            raise ConfigError(
                f"could not connect to the Ray cluster {address!r}: {_first_line(error)}",
                code="ray/unreachable",
            ) from error

    def close(self, *, keep_logs: bool) -> None:
        """Disconnect from Ray. A cluster of our own ends with all its processes.

        Args:
            keep_logs: keep the folder of our own cluster.
        """
        if self._was_connected:
            return
        if ray.is_initialized():
            with _sigterm_kept():
                ray.shutdown()
        self._end_reaper()
        self._forget_own()
        if self._folder is not None and not keep_logs:
            self._folder.remove()

    @property
    def logs(self) -> Path | None:
        """Folder in which our own cluster's processes write their logs; None without such a cluster."""
        return self._folder.path if self._folder is not None else None

    def _address(self) -> str | None:
        """Return the address of an existing cluster; None if the run starts its own."""
        return self._config.address or os.environ.get("RAY_ADDRESS") or None

    def _start(self) -> None:
        """Start a cluster that other users of this machine cannot enter.

        Raises:
            ConfigError: Ray could not be started. Nothing of it is left.
        """
        config, memory = self._config, self._config.object_store_mib
        _set_defaults(ENVIRONMENT)
        self._folder = folder = OwnFolder()
        self._variables = _set_defaults(
            {**own_cluster.ENVIRONMENT, TEMPORARY_VARIABLE: str(folder.path)}
        )
        self._reaper = start_reaper(os.getpid(), folder.path)
        folder.offer_token()
        try:
            with own_cluster.on_loopback():
                self._init(
                    address="local",
                    num_cpus=config.cpus or len(os.sched_getaffinity(0)),
                    object_store_memory=None if memory is None else memory * 2**20,
                    include_dashboard=False,
                    _temp_dir=str(folder.sessions),
                    _node_ip_address=LOOPBACK,
                )
        except BaseException as error:
            ray.shutdown()
            folder.end_processes()
            self._end_reaper()
            self._forget_own()
            folder.remove()
            self._folder = None
            if not isinstance(error, Exception):
                raise  # Ctrl-C
            raise ConfigError(
                f"could not start Ray on this machine: {_first_line(error)}\nRay gives each of its servers 20 to 30 s, "
                "which a machine under load may exceed: start the run again, with RAY_NUM_REDIS_GET_RETRIES=60 for "
                "more time",
                code="ray/not-started",
            ) from error

    def _end_reaper(self) -> None:
        if self._reaper is not None:
            # It ends what Ray has left, and removes its shared memory.
            self._reaper.terminate()
            try:
                self._reaper.wait(REAPER_LIMIT_S)
            except (
                subprocess.TimeoutExpired
            ):  # a process that the kernel cannot end now is nothing to wait for
                self._reaper.kill()
                self._reaper.wait()
            self._reaper = None

    def _forget_own(self) -> None:
        """Give this process back what it was before our own cluster, so that it can join or start another."""
        for name in self._variables:
            os.environ.pop(name, None)
        self._variables = ()
        if self._folder is not None:
            self._folder.withdraw_token()

    def _init(self, **options: Any) -> None:
        # Ray starts its processes so that Ctrl-C does not end them. Neither may a closed terminal or a scheduler's
        # warning, since the driver still wants to finish its step.
        hangups = held_back(signal.SIGHUP, *SCHEDULER_WARNINGS)
        with _sigterm_kept(), _process_group_kept(), hangups:
            ray.init(
                log_to_driver=self._config.show_output,
                logging_level=logging.WARNING,
                configure_logging=False,
                **options,
            )


def _set_defaults(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Set the variables that this process does not have, and return their names."""
    names = tuple(name for name in variables if name not in os.environ)
    os.environ.update({name: variables[name] for name in names})
    return names


def _first_line(error: Exception) -> str:
    """Return the first sentence of Ray's error: what follows are pages of its own logs, or a traceback of another."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" .")]
    return lines[0][:300] if lines else type(error).__name__


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM that Ray replaces: the loop's handler lets the step finish first."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _process_group_kept() -> Iterator[None]:
    """Return this process to the process group that Ray makes it leave.

    Otherwise a terminal's Ctrl-C would not reach a run that a script has started. Ray's own processes stay in the new
    process group, which Ray's reaper ends when this process dies.
    """
    before = os.getpgrp()
    try:
        yield
    finally:
        if os.getpgrp() != before:
            os.setpgid(0, before)

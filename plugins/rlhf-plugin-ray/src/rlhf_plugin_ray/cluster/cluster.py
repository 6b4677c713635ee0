"""Connection to an existing Ray cluster, or to a new one that ends with the run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from rlhf_core import ConfigError

from ..config import RayRuntimeConfig
from .joining import require_welcome
from .reaper import start_reaper

ENVIRONMENT = {
    # Ray would report its usage over the network.
    "RAY_USAGE_STATS_ENABLED": "0",
    # A process that was given no GPU sees all GPUs of its machine. With "1", Ray warns of a coming change.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Environment variables of this process and its children. A variable that the user has set keeps its value."""
OWN_ENVIRONMENT = {
    # When this process is killed, Ray's servers end with it; Ray's workers would look for the servers for 60 s.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
}
"""Further environment variables for a cluster that the run starts itself."""


class RayCluster:
    """The connection of this process to Ray. A connection that existed before the run is used and left open."""

    def __init__(self, config: RayRuntimeConfig) -> None:
        self._config = config
        self._folder: Path | None = None
        """Folder of our own cluster's sockets and logs; None without such a cluster."""
        self._was_connected = False
        self._reaper: subprocess.Popen[bytes] | None = None
        """Process that ends our own cluster's agents if this process is killed."""

    def open(self) -> None:
        """Connect, or start a cluster.

        Raises:
            ConfigError: there is no cluster at the address, or Ray could not be started.
        """
        self._was_connected = ray.is_initialized()
        if self._was_connected:
            return
        own = (address := self._address()) is None
        if address is not None:
            require_welcome(address, self._config.preflight_timeout_s)
        for name, value in (ENVIRONMENT | (OWN_ENVIRONMENT if own else {})).items():
            os.environ.setdefault(name, value)
        try:
            with _sigterm_kept(), _process_group_kept(), _hangups_left_to_the_driver():
                ray.init(**self._options())
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            doing = "start Ray" if own else f"connect to the Ray cluster {self._address()!r}"
            raise ConfigError(f"could not {doing}: {error}") from error
        if own:
            self._reaper = start_reaper(os.getpid())

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
        if self._reaper is not None:
            self._reaper.kill()
            self._reaper.wait()
            self._reaper = None
        if self._folder is not None and not keep_logs:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def logs(self) -> Path | None:
        """Folder in which our own cluster's processes write their logs; None without such a cluster."""
        return self._folder

    def _address(self) -> str | None:
        """Return the address of an existing cluster; None if the run starts its own."""
        return self._config.address or os.environ.get("RAY_ADDRESS") or None

    def _options(self) -> dict[str, Any]:
        config = self._config
        common = {
            "log_to_driver": config.show_output,
            "logging_level": "WARNING",
            "configure_logging": False,
        }
        if (address := self._address()) is not None:
            return common | {"address": address}
        self._folder = Path(tempfile.mkdtemp(prefix="rlhf-ray-"))
        memory = config.object_store_mib
        return common | {
            "address": "local",
            "num_cpus": config.cpus or len(os.sched_getaffinity(0)),
            "object_store_memory": None if memory is None else memory * 2**20,
            "include_dashboard": False,
            "_temp_dir": str(self._folder),
        }


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
def _hangups_left_to_the_driver() -> Iterator[None]:
    """Start processes that a closed terminal does not end, as Ray's own are started for Ctrl-C: the driver still wants
    to finish its step. One that comes meanwhile reaches the driver afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # programs inherit the mask
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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

"""What the process of every actor does before anything else: become like the driver, or refuse."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core import ConfigError, FingerprintMismatch, plugins
from rlhf_core.code_reference import CodeReference
from rlhf_core.fingerprint import fingerprint, require_equal
from rlhf_core.plugins import Plugins

from .interfaces import interface_with

OF_A_FILE = "file, "
"""How the origin of a component from a user's file begins."""


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """An actor and how messages call it."""

    actor: Any
    """Ray's handle."""
    who: str


@contextmanager
def killed_on_error(actor: Any) -> Iterator[None]:
    """End the process if the body fails: one that is of no use must not keep the place of its successor."""
    import ray

    try:
        yield
    except BaseException:
        ray.kill(actor)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What every process has to have in common with the driver."""

    folder: Path
    """Its working directory, from which relative paths in the options start."""
    fingerprint: Mapping[str, str]
    """See ``rlhf_core.fingerprint``."""
    files: Mapping[str, str]
    """Path -> origin of each user's file that components come from."""
    plugin_words: str | None
    """RLHF_PLUGINS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """What a process tells the driver."""

    pid: int
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """A rank's place among the processes of its role, as torch.distributed wants to know it."""

    rank: int
    world_size: int
    master_address: str
    master_port: int

    def export(self) -> None:
        """Set the variables that ``init_process_group`` reads. LOCAL_RANK is 0: Ray shows each process its own
        devices only, so that the first one it sees is its.

        Gloo would take the address that the host's own name stands for, which many machines say is 127.0.0.1, and which
        ranks elsewhere cannot reach: it is given the interface by which Ray reaches this machine.
        """
        os.environ.update(
            RANK=str(self.rank),
            WORLD_SIZE=str(self.world_size),
            MASTER_ADDR=self.master_address,
            MASTER_PORT=str(self.master_port),
            LOCAL_RANK="0",
        )
        interface = interface_with(own_address()) if self.world_size > 1 else None
        if interface is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the ranks of a role meet."""

    address: str
    port: int


def describe_driver(loaded: Plugins) -> Driver:
    """Return what this process, as the driver, tells the others."""
    return Driver(
        folder=Path.cwd(),
        fingerprint=fingerprint(loaded),
        files={
            name: origin for name, origin in loaded.loaded.items() if origin.startswith(OF_A_FILE)
        },
        plugin_words=os.environ.get("RLHF_PLUGINS"),
    )


def become_like(driver: Driver, who: str, threads: int) -> Plugins:
    """Take over the driver's working directory, load the plugins, and return them if they are the driver's.

    Args:
        who: how messages call this process: ``policy rank 0``, ``engine 1``.
        threads: CPU threads of torch.

    Raises:
        ConfigError: the working directory or a file in it does not exist on this machine.
        FingerprintMismatch: this process has other plugins, versions or files.
    """
    import torch

    try:
        os.chdir(driver.folder)
    except OSError as error:
        raise ConfigError(
            f"{socket.gethostname()} has no folder {driver.folder}, in which the run was started; it has to be on "
            f"a file system that all machines share ({error.strerror})"
        ) from error
    torch.set_num_threads(threads)
    # Arrays from the object store are read-only, which torch warns of; a backend only reads its batch.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    mine = plugins.load(driver.plugin_words or "")
    require_equal(driver.fingerprint, fingerprint(mine), who)
    for path, origin in driver.files.items():
        if CodeReference(Path(path), "file").origin != origin:
            raise FingerprintMismatch(
                f"{path} is another file on {socket.gethostname()} than where the run was started; copy it there, "
                "or start from a file system that all machines share"
            )
    return mine


def own_address() -> str:
    """Of this machine, for the others of the cluster."""
    import ray.util

    address: str = ray.util.get_node_ip_address()
    return address


class HeldPort:
    """A free port that no other program is given until ``release``, while this process can listen on it already.

    Linux lets two sockets have a port if both say so and neither listens. torch says so of the one that it opens.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]
        if sys.platform != "linux":
            self.release()

    def release(self) -> None:
        """Leave it to whoever listens on it."""
        self._socket.close()


@contextmanager
def children_apart() -> Iterator[None]:
    """Put what the body starts into a process group of its own.

    When a worker of Ray's dies, its node kills the worker's group at once. An engine's own processes notice by
    themselves that they are alone, and need a moment to give their shared memory back.
    """
    own = os.getpgrp()
    # A group lasts while it has a member.
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, process_group=0) as member:
        os.setpgid(0, member.pid)
        try:
            yield
        finally:
            os.setpgid(0, own)


def introduce() -> ProcessInfo:
    return ProcessInfo(pid=os.getpid(), host=socket.gethostname())

"""The first step of every actor's process: it becomes like the driver's process, or refuses."""

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
"""Beginning of the origin of a component that comes from a user's file."""


@dataclass(frozen=True, slots=True, eq=False)
class ActorProcess:
    """An actor and its name in messages."""

    actor: Any
    """Ray's handle of the actor, whose methods are made at run time."""
    who: str
    """Name of the process in messages, such as ``policy rank 0 (pid 17 on node-3)``."""


@contextmanager
def killed_on_error(actor: Any) -> Iterator[None]:
    """End an actor's process if the body fails, so that the process does not occupy the place of its successor."""
    import ray

    try:
        yield
    except BaseException:
        ray.kill(actor)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Properties of the driver's process that every other process has to share."""

    folder: Path
    """The driver's working directory, from which relative paths in the options start."""
    fingerprint: Mapping[str, str]
    """Versions of Python, plugins and libraries; see ``rlhf_core.fingerprint``."""
    files: Mapping[str, str]
    """Origin of each user's file that components come from, by its path."""
    plugin_words: str | None
    """Value of the environment variable RLHF_PLUGINS; None if it is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """The identity of a process, which it sends to the driver."""

    pid: int
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """A rank's place in the process group of its role, as torch.distributed wants to know it."""

    rank: int
    world_size: int
    master_address: str
    master_port: int

    def export(self) -> None:
        """Set the environment variables that ``init_process_group`` reads.

        LOCAL_RANK is 0, because Ray shows each process its own devices only. By default gloo listens on the address of
        the host's name. On many machines this address is 127.0.0.1, which ranks on other machines cannot reach, so
        gloo is given the interface by which Ray reaches this machine.
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
class RankMeeting:
    """The address and port at which the ranks of a role form their process group.

    Nothing listens there if they are on one machine: the port is then the number by which they find each other.
    """

    address: str
    port: int


def describe_driver(loaded: Plugins) -> Driver:
    """Return the properties of this process, the driver's, that the other processes have to share."""
    return Driver(
        folder=Path.cwd(),
        fingerprint=fingerprint(loaded),
        files={
            name: origin for name, origin in loaded.loaded.items() if origin.startswith(OF_A_FILE)
        },
        plugin_words=os.environ.get("RLHF_PLUGINS"),
    )


def become_like(driver: Driver, who: str, threads: int) -> Plugins:
    """Take over the driver's working directory, load the plugins, and return them if they equal the driver's.

    Args:
        who: name of this process in messages, such as ``policy rank 0`` or ``engine 1``.
        threads: number of CPU threads of torch.

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
            f"a file system that all machines share ({error.strerror})",
            code="ray/files-missing",
        ) from error
    torch.set_num_threads(threads)
    # torch warns of arrays from the object store, which are read-only; a backend only reads its batch.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    mine = plugins.load(driver.plugin_words or "")
    require_equal(driver.fingerprint, fingerprint(mine), who)
    for path, origin in driver.files.items():
        if CodeReference(Path(path), "file").origin != origin:
            raise FingerprintMismatch(
                f"{path} is another file on {socket.gethostname()} than where the run was started; copy it there, "
                "or start from a file system that all machines share",
                code="ray/file-differs",
            )
    return mine


def own_address() -> str:
    """Return the address at which the other machines of the cluster reach this one."""
    import ray.util

    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


class HeldPort:
    """A free port that the system gives to no other program until ``release``, but that torch can listen on.

    Linux lets two sockets share a port if both set SO_REUSEADDR and neither listens yet. torch sets this option on the
    socket that it opens. On other systems the port is released at once.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]
        if sys.platform != "linux":
            self.release()

    def release(self) -> None:
        """Close the socket that holds the port."""
        self._socket.close()


@contextmanager
def children_apart() -> Iterator[None]:
    """Put the processes that the body starts into a process group of their own.

    When one of Ray's workers dies, Ray kills the worker's process group at once. The processes that an engine has
    started notice by themselves that their parent is gone, and need a moment to free their shared memory.
    """
    own = os.getpgrp()
    # `cat` keeps the new process group in existence: a process group lasts as long as it has a member.
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, process_group=0) as member:
        os.setpgid(0, member.pid)
        try:
            yield
        finally:
            os.setpgid(0, own)

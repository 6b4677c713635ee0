"""The store of torch at which processes meet. On one machine it is memory that no other user can open."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import sys
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch.distributed

from .door import Door, has_ended, reach_door

dist: Any = torch.distributed
"""Untyped: torch declares none of its stores as exported."""

HAS_DOORS: Final = sys.platform == "linux"
_files: dict[tuple[int, int], int] = {}
"""Descriptor of each file that this process has stores in, by device and inode. torch opens a store's file by the
descriptor's name whenever it reads or writes, the last time when the store ends, so a descriptor is never closed. All
stores that a process opens are in one file, each with a prefix."""
_own: list[int] = []
"""Descriptor of the file of the stores that this process opens; empty before the first."""


class MeetingStore:
    """One process's end of a store.

    Args:
        store: torch's.
        number: port of the store; on one machine the number of its door.
        door: where the process that opened the store lets others in; None in other processes, and for several machines.
        line: line to that process; None in that process, and for several machines.
    """

    def __init__(
        self,
        store: Any,
        number: int,
        door: Door | None = None,
        line: socket.socket | None = None,
    ) -> None:
        self.torchs = store
        self.number = number
        self._line = line
        # Also where nobody closes the store: it is lost with the link of an engine that fails.
        self._ends = [weakref.finalize(self, end.close) for end in (door, line) if end is not None]

    def set(self, key: str, value: str) -> None:
        """Write a value.

        Raises:
            RuntimeError: the opener has closed the store, or ended; the methods below too, where a value is missing.
        """
        self._require_opener()
        self.torchs.set(key, value)

    def get(self, key: str) -> bytes:
        """Return a value, for which this process waits."""
        if not self.torchs.check([key]):
            self._require_opener()
        value: bytes = self.torchs.get(key)
        return value

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys have values."""
        if self.torchs.check(list(keys)):
            return True
        self._require_opener()
        return False

    def close(self) -> None:
        """Let no more processes in, and lose sight of the others. Those who have the store keep it."""
        for end in self._ends:
            end()
        self._line = None

    def _require_opener(self) -> None:
        if self._line is not None and has_ended(self._line):
            raise RuntimeError("the process that opened the store has closed it, or ended")


def open_store(host: str, port: int, timeout: timedelta) -> MeetingStore:
    """Return a new store that other processes reach at ``host``.

    A store of torch that listens asks nobody for a password. Where ``host`` is an address of the loopback, the store is
    a file in memory instead, which processes of this user alone get (Linux; elsewhere it listens on the loopback).

    Args:
        port: where it listens, or the number by which others reach it; 0: one that nobody has, the store's ``number``.
        timeout: for every single wait.

    Raises:
        OSError: another process uses ``port``.
    """
    if is_loopback(host) and HAS_DOORS:
        number = port or secrets.randbits(62)
        door = Door(number, _own_file())
        return MeetingStore(_store_in(_own_file(), number, timeout), number, door=door)
    if not is_loopback(host):
        store = dist.TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=timeout)
        return MeetingStore(store, store.port)
    listening = socket.create_server((host, port))
    store = dist.TCPStore(
        host,
        listening.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timeout,
        master_listen_fd=listening.fileno(),
    )
    listening.detach()  # It is the store's, which closes it.
    return MeetingStore(store, store.port)


def reach_store(host: str, port: int, timeout: timedelta) -> MeetingStore:
    """Return the other end of a store that a process has opened.

    Raises:
        RuntimeError, ValueError, TimeoutError: nobody answers there in time.
        ForeignConnection: another user answers there.
    """
    if is_loopback(host) and HAS_DOORS:
        file, line = reach_door(port, timeout.total_seconds())
        return MeetingStore(_store_in(_kept(file), port, timeout), port, line=line)
    store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timeout)
    return MeetingStore(store, port)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``, an address or the name localhost."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _own_file() -> int:
    if not _own:
        file = os.memfd_create("rlhf-meetings")
        os.fchmod(file, 0o600)
        _own.append(_kept(file))
    return _own[0]


def _kept(file: int) -> int:
    """Return the descriptor of this file that stays, and close the given one if it is another."""
    about = os.fstat(file)
    kept = _files.setdefault((about.st_dev, about.st_ino), file)
    if kept != file:
        os.close(file)
    return kept


def _store_in(file: int, number: int, timeout: timedelta) -> Any:
    store = dist.FileStore(f"/proc/self/fd/{file}")
    store.set_timeout(timeout)
    return dist.PrefixStore(str(number), store)

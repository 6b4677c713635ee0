"""Process group of one sender and its receivers, apart from all other process groups of their processes.

A trainer's ranks and an engine's workers already have default process groups, so this one is made of torch's process
groups without the default one. Small messages go by gloo; buckets go by NCCL on GPUs. Every wait polls, so that it
ends at its deadline or as soon as any member gives it up. A wait inside NCCL would do neither.
"""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed
from torch import Tensor

from rlhf_core.errors import RLHFError

from .connections import ForeignConnection
from .local_gloo import form_locally
from .store import MeetingStore, is_loopback, open_store, reach_store

dist: Any = torch.distributed
"""Untyped: torch declares neither its stores nor its process groups as exported."""

POLL_S: Final = 0.0002
"""Seconds between two polls of an operation."""
GRACE_S: Final = 30.0
"""Seconds by which the deadlines of gloo and NCCL come after this module's. Its error names the operation that was
waited for, while NCCL would end the process."""
LOOK_S: Final = 0.2
"""Seconds between two checks whether a member has given the process group up."""
BROKEN: Final = "broken"
"""Key of the store that holds the reason for which a member gave the process group up."""
SENDER: Final = 0
"""The sender's rank."""

Pauses = Iterator[float]
"""Seconds to sleep between two polls. The caller sleeps, so that threads and coroutines use the same polls."""


class LinkBroken(RLHFError):
    """A member of the process group died, gave up or missed the deadline; a new one has to be formed without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeeting:
    """Address at which the members of a process group meet, in plain values."""

    name: str
    """Name of the link for messages."""
    host: str
    """Address of the sender's machine."""
    port: int
    """Port of the store in the sender's process; on one machine the number by which it is reached there."""
    size: int
    """Number of members, the sender included."""
    timeout_s: float
    """Time limit of every single wait, in seconds."""


class LinkGroup:
    """One member's end of a process group. ``host`` makes the sender's, ``guest`` a receiver's; ``connect`` joins."""

    def __init__(self, meeting: LinkMeeting, rank: int, store: MeetingStore) -> None:
        self.meeting = meeting
        self.rank = rank
        self._store = store
        self._control: Any = None
        self._data: Any = None
        self._works: list[Any] = []
        """Operations that were started and may not be done."""
        self._broken: str | None = None

    @classmethod
    def host(cls, name: str, host: str, size: int, timeout_s: float) -> LinkGroup:
        """Open a meeting and return the sender's end.

        Args:
            name: name of the link for messages.
            host: address of this machine; ``127.0.0.1`` if all members are on it.
            size: number of members, the sender included.
            timeout_s: time limit of every single wait, in seconds.
        """
        store = open_store(host, 0, timedelta(seconds=timeout_s))
        meeting = LinkMeeting(
            name=name, host=host, port=store.number, size=size, timeout_s=timeout_s
        )
        return cls(meeting, SENDER, store)

    @classmethod
    def guest(cls, meeting: LinkMeeting, rank: int) -> LinkGroup:
        """Reach the meeting and return the end of the receiver with this rank.

        Raises:
            LinkBroken: no sender answers at the meeting's address.
        """
        limit = timedelta(seconds=meeting.timeout_s)
        try:
            store = reach_store(meeting.host, meeting.port, limit)
        except (RuntimeError, ValueError, OSError, ForeignConnection) as error:
            raise LinkBroken(
                f"weight link {meeting.name}: nobody at {meeting.host}:{meeting.port}: {error}",
                code="weights/link-broken",
            ) from error
        return cls(meeting, rank, store)

    def connect(self, device: torch.device | None) -> None:
        """Wait until all members have come, and form the process groups.

        Args:
            device: device of the buckets; None if no bucket is broadcast.

        Raises:
            LinkBroken: a member did not come in time.
        """
        meeting, limit = self.meeting, timedelta(seconds=self.meeting.timeout_s + GRACE_S)
        with self._translated():
            self._store.set(f"here/{self.rank}", "1")
            for pause in self._until_all_here():
                time.sleep(pause)
            self._control = self._data = self._gloo_group(limit)
        if device is not None and device.type == "cuda":
            self._data = _nccl_group(
                dist.PrefixStore("data", self._store.torchs), self.rank, meeting.size, limit
            )
            # NCCL connects at its first operation. It is made here, so that it fails while the process groups form.
            self.wait(self.broadcast(torch.zeros(1, dtype=torch.uint8, device=device)), "the start")

    def broadcast(self, bucket: Tensor) -> Any:
        """Start sending ``bucket`` (the sender) or receiving into ``bucket``; return torch's handle."""
        return self._started(lambda: self._data.broadcast([bucket], dist.BroadcastOptions()))

    def announce(self, value: Tensor) -> Any:
        """Start sending or receiving a few numbers on the CPU; return torch's handle."""
        return self._started(lambda: self._control.broadcast([value], dist.BroadcastOptions()))

    def barrier(self) -> Any:
        """Start waiting for all members; return torch's handle."""
        return self._started(
            lambda: self._control.allreduce([torch.zeros(1)], dist.AllreduceOptions())
        )

    def pauses(self, work: Any, what: str) -> Pauses:
        """Yield the seconds to sleep until ``work`` is done.

        Args:
            work: handle of an operation.
            what: name of the operation for messages.

        Raises:
            LinkBroken: the operation failed, a member gave the process group up, or the deadline passed.
        """
        now = time.monotonic()
        deadline, look = now + self.meeting.timeout_s, now + LOOK_S
        try:
            while not work.is_completed():
                now = time.monotonic()
                if now > look:
                    self._require_nobody_gave_up(what)
                    look = now + LOOK_S
                if now > deadline:
                    raise self._error(f"{what} took longer than {self.meeting.timeout_s:g} s")
                yield POLL_S
            with self._translated():
                work.wait()
        except BaseException as error:
            self.give_up(str(error) or type(error).__name__)
            raise

    def wait(self, work: Any, what: str) -> None:
        """Block until ``work`` is done; raises as ``pauses`` does."""
        for pause in self.pauses(work, what):
            time.sleep(pause)

    def give_up(self, reason: str) -> None:
        """End the waits of all members. The process group cannot be used afterwards."""
        if self._broken is not None:
            return
        self._broken = reason
        try:
            if not self._store.check([BROKEN]):
                self._store.set(BROKEN, f"rank {self.rank}: {reason}"[:2000])
        except RuntimeError:
            return  # The store is gone with the sender's process, which the other members notice by themselves.
        finally:
            if self._data is not self._control and self._data is not None:
                self._data.abort()

    def close(self) -> None:
        """Leave the process group, and give up all operations that are not done."""
        if _pending(self._works):
            _leak(self._control)
            _leak(self._data)
        self._control = self._data = None
        self._broken = self._broken or "it was closed"
        self._store.close()

    def _gloo_group(self, limit: timedelta) -> Any:
        store, rank, size = (
            dist.PrefixStore("control", self._store.torchs),
            self.rank,
            self.meeting.size,
        )
        if is_loopback(self.meeting.host):
            return form_locally(
                lambda options: dist.ProcessGroupGloo(store, rank, size, options),
                store,
                rank,
                size,
                limit,
            )
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._own_address())]
        options._timeout = limit
        return dist.ProcessGroupGloo(store, rank, size, options)

    def _until_all_here(self) -> Pauses:
        keys = [f"here/{rank}" for rank in range(self.meeting.size)]
        deadline = time.monotonic() + self.meeting.timeout_s
        while not self._store.check(keys):
            self._require_nobody_gave_up("forming the group")
            if time.monotonic() > deadline:
                missing = [key for key in keys if not self._store.check([key])]
                raise self._error(
                    f"{', '.join(missing)} did not come within {self.meeting.timeout_s:g} s"
                )
            yield 0.01

    def _started(self, start: Callable[[], Any]) -> Any:
        self._require_whole()
        with self._translated():
            work = start()
        self._works = [*_pending(self._works), work]
        return work

    def _require_whole(self) -> None:
        if self._broken is not None:
            raise self._error(self._broken)

    def _require_nobody_gave_up(self, what: str) -> None:
        try:
            reason = self._store.get(BROKEN).decode() if self._store.check([BROKEN]) else None
        except RuntimeError as error:
            raise self._error(f"the sender's process is gone during {what}: {error}") from error
        if reason is not None:
            raise self._error(f"{what} was given up by {reason}")

    def _own_address(self) -> str:
        """Return the address of the network interface by which the other members reach this process."""
        if self.rank == SENDER:
            return self.meeting.host
        with socket.create_connection(
            (self.meeting.host, self.meeting.port), timeout=self.meeting.timeout_s
        ) as probe:
            address: str = probe.getsockname()[0]
            return address

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except LinkBroken as error:
            self.give_up(str(error))
            raise
        # torch raises RuntimeError for a lost connection
        except (RuntimeError, OSError, ForeignConnection) as error:
            # A member that gives up says why before its connections are lost.
            others = self._reason_of_another()
            self.give_up(str(error))
            raise self._error(f"given up by {others}" if others else str(error)) from error

    def _reason_of_another(self) -> str | None:
        """Return why a member gave the process group up, with its rank; None if none did, or the store is gone."""
        if self._broken is not None:
            return None
        try:
            return self._store.get(BROKEN).decode() if self._store.check([BROKEN]) else None
        except RuntimeError:
            return None

    def _error(self, reason: str) -> LinkBroken:
        return LinkBroken(f"weight link {self.meeting.name}: {reason}", code="weights/link-broken")


def _leak(group: Any) -> None:
    """Keep a process group from ever being destroyed.

    Gloo's destructor waits for its operations while it holds the interpreter's lock, even while the interpreter exits.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _pending(works: list[Any]) -> list[Any]:
    return [work for work in works if not work.is_completed()]


def _nccl_group(store: Any, rank: int, size: int, limit: timedelta) -> Any:
    """Return an NCCL process group that reports errors; by default torch would end the process instead."""
    name, before = (
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    )
    os.environ[name] = "0"
    try:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = limit
        return dist.ProcessGroupNCCL(store, rank, size, options)
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before

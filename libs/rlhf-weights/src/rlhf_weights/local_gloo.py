"""Process groups of gloo on one machine, whose members are processes of one user.

gloo knows no password: who connects to a member while a group forms may take another member's place, and a flood of
connections ends the process. So a group listens on the loopback, lets nobody connect once it has formed, and then
compares the users at both ends of its connections, before anything is sent. Linux alone tells users; elsewhere a group
is formed without all of this.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache, wraps
from typing import Any, Final, TypeVar

import torch.distributed

from .connections import (
    LISTENS,
    TABLES,
    ForeignConnection,
    connections,
    far_users,
    own_sockets,
    read_tables,
)

log = logging.getLogger(__name__)

dist: Any = torch.distributed
"""Untyped: torch declares no options of gloo."""

LOOPBACK: Final = "127.0.0.1"
LIMIT_S: Final = 60.0
"""Seconds within which the kernel's table shows both ends of connections that exist."""
AGAIN_S: Final = 0.05
_SO_ATTACH_FILTER: Final = 26
_MAKING = threading.Lock()

Made = TypeVar("Made")


class _Instruction(ctypes.Structure):
    _fields_ = (  # struct sock_filter of linux/filter.h
        ("code", ctypes.c_uint16),
        ("jt", ctypes.c_uint8),
        ("jf", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (  # struct sock_fprog
        ("len", ctypes.c_uint16),
        ("filter", ctypes.POINTER(_Instruction)),
    )


def form_locally(
    make: Callable[[Any], Made], store: Any, rank: int, size: int, timeout: timedelta
) -> Made:
    """Return what ``make`` returns for the options of a group of gloo on this machine; it forms the group with them.

    Args:
        store: the group's own, through which other users cannot write.
        timeout: of each operation of the group.

    Raises:
        ForeignConnection: another user has connected to a member while the group formed. Nothing was sent.
    """
    with _MAKING:  # one at a time, since each looks for the socket that is new
        device, listening = _listening_device()
    options = dist.ProcessGroupGloo._Options()
    options._devices, options._timeout = [device], timeout
    made = make(options)
    if listening is None or not kernel_tells():
        return made
    # A member whose peers have connected may not yet have: who lets nobody in before, because a stranger has taken its
    # place, leaves it to TCP's minutes.
    store.set(f"rlhf/formed/{rank}", "")
    store.wait([f"rlhf/formed/{other}" for other in range(size)], timeout)
    port = _let_nobody_in(listening)
    store.set(f"rlhf/listens/{rank}", str(port))
    ports = {int(store.get(f"rlhf/listens/{other}")) for other in range(size)}
    _require_own_user(ports, rank, size)
    return made


def form_all_locally() -> None:
    """Form each group of gloo of this process as ``form_locally`` does, also those that other libraries make.

    For a process whose default process group is on one machine. torch offers no place for that, so the constructor is
    changed. Who gives options of gloo's own, as for a group with other machines, is let alone.
    """
    kind = dist.ProcessGroupGloo
    original = kind.__init__
    if getattr(original, "forms_locally", False):
        return

    @wraps(original)
    def form(
        self: Any, store: Any, rank: int, size: int, options: Any = None, **named: Any
    ) -> None:
        timeout = named.get("timeout", options)
        if not isinstance(timeout, timedelta):
            original(self, store, rank, size, *([] if options is None else [options]), **named)
            return
        form_locally(
            lambda chosen: original(self, store, rank, size, chosen), store, rank, size, timeout
        )

    form.forms_locally = True  # type: ignore[attr-defined]
    kind.__init__ = form


@cache
def kernel_tells() -> bool:
    """Return whether the kernel's tables name the users at both ends of a connection, as those of Linux do.

    A sandbox that plays the kernel may have the tables and leave out what is in them; then users are not compared.
    """
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((LOOPBACK, port)), server.accept()[0]:
            users = far_users(connections(read_tables()), own_sockets().keys(), {port})
    tells = list(users.values()) == [os.geteuid()] * 2
    if not tells:
        log.warning(
            "this system does not say whose processes are connected on the loopback: other users of the machine are "
            "not kept off the ports of ranks and weight links (docs/security.md)"
        )
    return tells


def _listening_device() -> tuple[Any, int | None]:
    """Return a device of gloo and the inode of the socket at which it listens; None: this system does not tell."""
    while True:
        before = _listening_sockets()
        device = dist.ProcessGroupGloo.create_device(hostname=LOOPBACK, lazy_init=False)
        new = _listening_sockets() - before
        if not new:
            return device, None
        if len(new) == 1:  # else another thread has begun to listen meanwhile
            return device, new.pop()


def _listening_sockets() -> set[int]:
    if not TABLES[0].exists():
        return set()
    own = own_sockets()
    rows = connections(read_tables())
    return {row.inode for row in rows if row.state == LISTENS and row.inode in own}


def _let_nobody_in(inode: int) -> int:
    """Have the kernel drop all that comes to a listening socket, and return its port.

    Connections that exist are not touched, and gloo, which has the socket, waits at it as before. Closing the socket
    instead would end the process, as gloo's own thread takes an error there for a bug.
    """
    drop = _Instruction(0x06, 0, 0, 0)  # BPF_RET | BPF_K: accept 0 bytes
    program = _Program(1, ctypes.pointer(drop))
    with socket.socket(fileno=os.dup(own_sockets()[inode])) as listening:
        try:
            listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(program))
        except OSError as error:
            log.warning("other users of the machine may connect to a port of gloo: %s", error)
        port: int = listening.getsockname()[1]
        return port


def _require_own_user(ports: set[int], rank: int, size: int) -> None:
    """Return if each of this rank's connections to the ``size - 1`` other members ends at a process of this user.

    Raises:
        ForeignConnection: one ends at another user's process, or is unknown to the kernel.
    """
    deadline = time.monotonic() + LIMIT_S
    me = os.geteuid()
    while True:
        users = far_users(connections(read_tables()), own_sockets().keys(), ports)
        strangers = {user for user in users.values() if user not in (me, None)}
        if strangers:
            raise ForeignConnection(
                f"expected that all {size} members of a process group are of user {me}, got a connection from user "
                f"{', '.join(map(str, strangers))} at rank {rank}. Nothing was sent. Start the run again; "
                "docs/security.md has a way to keep other users of this machine off",
                code="weights/foreign-connection",
            )
        if None not in users.values() and len(users) >= size - 1:
            return
        if time.monotonic() > deadline:
            raise ForeignConnection(
                f"expected {size - 1} connections from rank {rank} to processes of user {me}, got {len(users)}, of "
                f"which {list(users.values()).count(None)} end at no process. Start the run again",
                code="weights/foreign-connection",
            )
        time.sleep(AGAIN_S)

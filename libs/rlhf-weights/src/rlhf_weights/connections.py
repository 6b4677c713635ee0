"""The users at the far ends of TCP connections of this machine, as Linux's ``/proc/net`` has them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlhf_core.errors import RLHFError

TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED: Final = "01"
LISTENS: Final = "0A"
_MAPPED: Final = "0000000000000000FFFF0000"
"""Beginning of an IPv4 address that a socket of IPv6 uses."""

Address = tuple[str, int]
"""Address as the table has it, in hexadecimal digits, and the port."""


class ForeignConnection(RLHFError):
    """Another user of this machine is at an end of a connection that should join processes of one run."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One row of the kernel's table: a socket of TCP."""

    near: Address
    far: Address
    state: str
    """``ESTABLISHED``, ``LISTENS`` or another of the kernel's."""
    user: int
    """The user who made the socket."""
    inode: int
    """Number of the socket; 0: it is no process's, so that ``user`` says nothing."""


def read_tables() -> str:
    """Return the rows of the kernel's tables; empty on a system that has none."""
    return "\n".join(table.read_text("ascii") for table in TABLES if table.exists())


def connections(tables: str) -> list[Connection]:
    """Return the rows of the kernel's tables, whose headings are left out."""
    return list(_rows(tables))


def _rows(tables: str) -> Iterator[Connection]:
    for line in tables.splitlines():
        fields = line.split()
        # 0: number, 1: near, 2: far, 3: state, 4: queues, 5: timer, 6: retransmits, 7: user, 8: timeout, 9: inode
        if len(fields) < 10 or fields[0] == "sl":
            continue
        yield Connection(
            near=_address(fields[1]),
            far=_address(fields[2]),
            state=fields[3],
            user=int(fields[7]),
            inode=int(fields[9]),
        )


def far_users(
    rows: Collection[Connection], sockets: Set[int], ports: Set[int]
) -> dict[tuple[Address, Address], int | None]:
    """Return the user at the far end of each connection of ``sockets``; None: the table does not say.

    Args:
        sockets: inodes of a process's sockets.
        ports: ports where its group listens; a connection with none of them at an end is left out.
    """
    ends = {(row.near, row.far): row for row in rows if row.inode}
    found: dict[tuple[Address, Address], int | None] = {}
    for row in rows:
        if row.state != ESTABLISHED or row.inode not in sockets:
            continue
        if row.near[1] in ports or row.far[1] in ports:
            end = ends.get((row.far, row.near))
            found[row.near, row.far] = None if end is None else end.user
    return found


def own_sockets() -> dict[int, int]:
    """Return the descriptors of this process's sockets by their inodes."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since the folder was listed
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:["):
                found[int(target[8:-1])] = int(name)
    return found


def _address(word: str) -> Address:
    address, port = word.split(":")
    return address.removeprefix(_MAPPED), int(port, 16)

"""Files that a program may open, by Landlock, for which no privileges are needed (Linux 5.13 and later).

Reading: Python's installation, the system's libraries, a few devices. Writing: one folder. Everything else is refused,
``/proc`` included, where the environment of other processes stands. From Linux 6.7 on TCP is refused as well, and from
6.12 signals to processes outside.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from .system import syscall

# Numbers of the system calls, the same on every architecture.
CREATE_RULESET = 444
ADD_RULE = 445
RESTRICT_SELF = 446

_VERSION_FLAG = 1
_PATH_BENEATH = 1
_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, list a folder
_FILE = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # rights that a file, not a folder, can have
_FS_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Version of Landlock -> number of rights of files that it knows; later ones: 16."""
_TCP = 0b11
_SCOPED = 0b11

SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("fs", ctypes.c_uint64),
        ("net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """Return the kernel's version of Landlock; 0: it has none."""
    try:
        return syscall(CREATE_RULESET, None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def confine(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Refuse this process and those that it starts every file but the given ones, for good.

    Args:
        readable: files and folders to read and execute; those that do not exist are left out.
        writable: files and folders for everything.

    Raises:
        OSError: the kernel has no Landlock, or a writable path does not exist.
    """
    known = version()
    if not known:
        raise OSError("this kernel has no Landlock")
    rights = (1 << _FS_RIGHTS.get(known, 16)) - 1
    ruleset = _Ruleset(rights, _TCP if known >= 4 else 0, _SCOPED if known >= 6 else 0)
    size = 8 if known < 4 else 16 if known < 6 else 24
    descriptor = syscall(CREATE_RULESET, ctypes.byref(ruleset), size, 0)
    for path in readable:
        if os.path.exists(path):
            _allow(descriptor, path, rights & _READ)
    for path in writable:
        _allow(descriptor, path, rights)
    syscall(RESTRICT_SELF, descriptor, 0)
    os.close(descriptor)


def _allow(ruleset: int, path: str, rights: int) -> None:
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        allowed = rights if os.path.isdir(path) else rights & _FILE
        rule = _PathRule(allowed, parent)
        syscall(ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(parent)

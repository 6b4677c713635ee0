"""System calls that a program may not make, by a seccomp filter, for which no privileges are needed.

Refused: sockets of every kind (also those of Unix, behind which services of the machine listen; pairs of connected
sockets are allowed), io_uring, looking into other processes, new namespaces, mounts, keys, and on request new
processes.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

from .system import PR_SET_SECCOMP, prctl

_FILTER_MODE = 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in the kernel's ``struct seccomp_data``; the first argument's lower half, on little-endian machines."""
_X32 = 0x40000000
_CLONE_THREAD = 0x00010000
_CLONE3 = 435

_REFUSED = {
    "x86_64": {
        "socket": 41,
        "ptrace": 101,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "unshare": 272,
        "setns": 308,
        "mount": 165,
        "pivot_root": 155,
        "chroot": 161,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "bpf": 321,
        "perf_event_open": 298,
        "userfaultfd": 323,
    },
    "aarch64": {
        "socket": 198,
        "ptrace": 117,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "unshare": 97,
        "setns": 268,
        "mount": 40,
        "pivot_root": 41,
        "chroot": 51,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "bpf": 280,
        "perf_event_open": 241,
        "userfaultfd": 282,
    },
}
_COMMON = {"io_uring_setup": 425, "pidfd_getfd": 438}
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_FORKS = {"x86_64": (57, 58), "aarch64": ()}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def known() -> bool:
    """Return whether the numbers of this machine's system calls are known."""
    return platform.machine() in _ARCHITECTURES


def refuse(*, processes: bool) -> None:
    """Refuse the calls to this process and those that it starts, for good.

    Args:
        processes: refuse new processes too; threads are allowed.

    Raises:
        OSError: the kernel takes no filters, or this is another architecture.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise OSError(f"no filter of system calls is known for {machine}")
    code = b"".join(_instructions(machine, processes=processes))
    program = _Program(len(code) // 8, code)
    prctl(PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program))


def _instructions(machine: str, *, processes: bool) -> list[bytes]:
    """Return the filter: each refused number returns at once, so that no jump is long."""
    no = _ERRNO | errno.EPERM
    code = [
        _one(_LOAD, _ARCHITECTURE),
        _one(_JUMP_EQUAL, _ARCHITECTURES[machine], 1, 0),
        _one(_RETURN, no),
        _one(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        code += [_one(_JUMP_AT_LEAST, _X32, 0, 1), _one(_RETURN, no)]
    refused = [*_REFUSED[machine].values(), *_COMMON.values()]
    if processes:
        refused += _FORKS[machine]
        # Libraries fall back to clone, whose flags can be seen; those of clone3 are behind a pointer.
        code += [_one(_JUMP_EQUAL, _CLONE3, 0, 1), _one(_RETURN, _ERRNO | errno.ENOSYS)]
    for number in refused:
        code += [_one(_JUMP_EQUAL, number, 0, 1), _one(_RETURN, no)]
    if processes:
        code += [
            _one(_JUMP_EQUAL, _CLONE[machine], 0, 3),
            _one(_LOAD, _FIRST_ARGUMENT),
            _one(_JUMP_ANY_BIT, _CLONE_THREAD, 1, 0),
            _one(_RETURN, no),
        ]
    return [*code, _one(_RETURN, _ALLOW)]


def _one(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)

"""System calls that Python's standard library has no function for."""

from __future__ import annotations

import ctypes
import os

_LIBC = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

_LAST_CAPABILITY = 63


def prctl(option: int, first: int = 0, second: object = 0) -> None:
    """Call ``prctl``.

    Raises:
        OSError: the kernel refuses.
    """
    argument = second if not isinstance(second, int) else ctypes.c_ulong(second)
    if _LIBC.prctl(option, ctypes.c_ulong(first), argument, ctypes.c_ulong(0), ctypes.c_ulong(0)):
        raise _error()


def syscall(number: int, *arguments: object) -> int:
    """Call the kernel by number, and return its answer.

    Raises:
        OSError: the kernel refuses.
    """
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    answer = int(_LIBC.syscall(ctypes.c_long(number), *given))
    if answer < 0:
        raise _error()
    return answer


def call(name: str, *arguments: object) -> None:
    """Call a function of the C library that answers 0.

    Raises:
        OSError: the kernel refuses.
    """
    if getattr(_LIBC, name)(*arguments):
        raise _error()


def unshare(flags: int) -> None:
    """Leave the namespaces of ``flags`` for new ones.

    Raises:
        OSError: the kernel refuses.
    """
    call("unshare", ctypes.c_int(flags))


def drop_capabilities() -> None:
    """Have the next program start without privileges, even as root; and none that it starts may gain some."""
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # no such capability, or no privileges to give up
            break
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))

"""Namespaces: a network without devices, and process numbers of its own, whose end is that of every process in it."""

from __future__ import annotations

import os

from .system import unshare

_USER, _NETWORK, _PROCESSES, _MESSAGES = 0x10000000, 0x40000000, 0x20000000, 0x08000000


def enter() -> bool:
    """Have the next process that this one forks start in namespaces of its own; return whether the kernel allows it.

    Unprivileged users get them inside of a user namespace, where machines allow those; root gets them without.
    """
    uid, gid = os.getuid(), os.getgid()
    wanted = _NETWORK | _PROCESSES | _MESSAGES
    try:
        unshare(_USER | wanted)
    except OSError:
        try:
            unshare(wanted)
        except OSError:
            return False
        return True
    # The user keeps its number; groups cannot be given up in order to reach what they exclude.
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"{uid} {uid} 1")
    write("/proc/self/gid_map", f"{gid} {gid} 1")
    return True


def bound_processes(most: int) -> bool:
    """Bound the process numbers of this process's own namespace; return whether the kernel can (Linux 6.14 and later).

    It does not go below some 300, which are few enough to be counted and killed.
    """
    try:
        write("/proc/sys/kernel/pid_max", str(max(310, most + 10)))
    except OSError:
        return False
    return True


def write(path: str, text: str) -> None:
    """Write a file of the kernel's."""
    with open(path, "w", encoding="ascii") as file:
        file.write(text)

"""The process around a command in this machine's sandbox, of the standard library and
``rlhf_tools.sandbox.inside`` alone.

It leaves for namespaces of its own (users, mounts, processes, network, messages), makes the episode's folder the root
of what can be seen, with the system's programs mounted read-only, gives up all privileges and becomes bash. Standard
input has the settings and then stays open; its end means that whoever waits is gone, and everything is killed.

    supervisor    watches its input and the command
    first         number 1 of its process namespace, whose end kills everything in it
    command       bash -c, with limits

Exit status: the command's; 125 with a line on standard error that begins with ``sandbox:``: it could not be built.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
from typing import Any, NoReturn

from rlhf_tools.sandbox.inside import namespaces
from rlhf_tools.sandbox.inside.program import end_as, read_passed, set_limits
from rlhf_tools.sandbox.inside.system import (
    PR_SET_PDEATHSIG,
    call,
    drop_capabilities,
    prctl,
    syscall,
    unshare,
)

NEW_NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = (
    442,
    -100,
    0x8000,
    1,
    2,
)
MNT_DETACH = 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
BROKEN = 125


def main() -> NoReturn:
    """Run the command of the settings."""
    settings = json.loads(read_passed())
    try:
        leave(os.getuid(), os.getgid())
        first = os.fork()
        if not first:
            be_first(settings)
        os.close(1)
        code = watch(first)
    except OSError as error:
        broken(error)
    os._exit(code)


def leave(uid: int, gid: int) -> None:
    """Enter namespaces of its own, as the root of them."""
    unshare(NEW_NAMESPACES)
    namespaces.write("/proc/self/setgroups", "deny")
    namespaces.write("/proc/self/uid_map", f"0 {uid} 1")
    namespaces.write("/proc/self/gid_map", f"0 {gid} 1")


def watch(first: int) -> int:
    """Wait for the command's end, and return its status; kill it when the input ends."""
    exited = os.pidfd_open(first)
    while True:
        ready, _, _ = select.select([0, exited], [], [])
        if exited in ready:
            _, status = os.waitpid(first, 0)
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        os._exit(137)


def be_first(settings: dict[str, Any]) -> NoReturn:
    """Build the root, start the command, take in every orphan, and end as the command does."""
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        bound_processes(settings["processes"])
        enter_root(settings["root"], settings["readable"])
        child = os.fork()
        if not child:
            become(settings)
        os.close(0)
        os.close(1)
        end_as(child)
    except OSError as error:
        broken(error)


def bound_processes(most: int) -> None:
    """Bound the numbers of processes: of the namespace, or of the user; root's are bounded by the namespace alone."""
    if namespaces.bound_processes(most):
        return
    with open("/proc/self/uid_map", encoding="ascii") as file:
        if file.read().split()[1] == "0":
            raise OSError(
                "the number of root's processes cannot be bounded before Linux 6.14; run as another user"
            )


def enter_root(root: str, readable: list[str]) -> None:
    """Make the folder the root of what can be seen, with the readable paths in it."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount(root, root, None, MS_BIND | MS_REC)
    for path in readable:
        show(path, root + path)
    for name in ("null", "zero", "full", "random", "urandom"):
        target = f"{root}/dev/{name}"
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
        mount(f"/dev/{name}", target, None, MS_BIND)
    mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV)
    os.chdir(root)
    syscall(PIVOT_ROOT[os.uname().machine], b".", b".")
    call("umount2", b".", ctypes.c_int(MNT_DETACH))
    os.chdir("/")


def show(source: str, target: str) -> None:
    """Let a path of this machine be seen, for reading alone; a link is copied."""
    if os.path.islink(source):
        if not os.path.lexists(target):
            os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
    mount(source, target, None, MS_BIND | MS_REC)
    only_read = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, 0, 0, 0)
    syscall(MOUNT_SETATTR, AT_FDCWD, target.encode(), AT_RECURSIVE, only_read, 32)


def become(settings: dict[str, Any]) -> NoReturn:
    """Give up everything that the command must not have, and become it."""
    try:
        set_limits(settings["limits"])
        drop_capabilities()
        os.chdir(settings["workdir"])
        errors = os.dup(2)
        os.set_inheritable(errors, False)
        silence = os.open("/dev/null", os.O_RDONLY)
        os.dup2(silence, 0)
        os.dup2(1, 2)
        os.execve("/bin/bash", ["bash", "-c", settings["command"]], settings["variables"])
    except OSError as error:
        broken(error)


def mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    """Mount, or change a mount.

    Raises:
        OSError: the kernel refuses.
    """
    given = [None if one is None else one.encode() for one in (source, target, kind)]
    try:
        call("mount", *given, ctypes.c_ulong(flags), None)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: mount {source} at {target}") from error


def broken(error: OSError) -> NoReturn:
    """Say why there is no sandbox, and end."""
    os.write(2, f"sandbox: {error}\n".encode(errors="replace"))
    os._exit(BROKEN)

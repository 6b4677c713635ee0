"""Parts that processes around a sandboxed program share: its input, its limits, and the wait for its end."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from typing import NoReturn


def read_passed() -> bytes:
    """Return what was passed on standard input: a line with the number of bytes, then those. The input stays open."""
    line = b""
    while not line.endswith(b"\n"):
        line += _read(1)
    left, passed = int(line), b""
    while len(passed) < left:
        passed += _read(left - len(passed))
    return passed


def _read(most: int) -> bytes:
    part = os.read(0, min(most, 1 << 16))
    if not part:
        raise SystemExit("the input ended too early")
    return part


def set_limits(limits: Mapping[str, int]) -> None:
    """Limit this process and those that it starts, by names of ``resource``, to no more than it already is."""
    for name, value in limits.items():
        limit = getattr(resource, name)
        _, hard = resource.getrlimit(limit)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (most, most))


def end_as(child: int) -> NoReturn:
    """Take in every orphan, and end as a child does. Exit statuses above 128 are signals, as in a shell: number 1 of a
    namespace cannot kill itself."""
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)

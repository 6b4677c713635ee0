"""A check with a deadline, after which the lack of a result is its result.

The check runs in a process of its own, which can be ended whatever it does: a regular expression that backtracks
without an end holds the interpreter, so no thread beside it would ever run.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import re
import signal
import sysconfig
import tempfile
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from .subject import Check, CheckOutcome, Subject, outcome_of

GRACE_S = 10.0
"""Seconds beyond a check's own deadline in which its process says where it was."""
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_OURS = (str(Path(__file__).parents[2]), sysconfig.get_path("stdlib"))
"""Folders of code that calls an environment, or that it calls."""


def outcome_within(check: Check, tried: Subject, kind: str) -> CheckOutcome:
    """Return the outcome of a check; of one that takes longer than ``Check.deadline_s``, that it failed, and where.

    The process is a copy of this one, so what the check changes is gone with it.
    """
    context = multiprocessing.get_context("fork")
    reading, writing = context.Pipe(duplex=False)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stack:
        process = context.Process(
            target=_run,
            args=(check, tried, kind, writing, stack),
            name=f"conformance {check.name}",
        )
        process.start()
        writing.close()
        try:
            is_over = reading.poll(check.deadline_s + GRACE_S)
            found: CheckOutcome | None = None
            if is_over:
                # The end of a process that said nothing looks as a closed pipe.
                with suppress(EOFError):
                    found = reading.recv()
        finally:
            reading.close()
            _end(process)
        if found is not None:
            return found
        stack.seek(0)
        written = stack.read()
    if written or not is_over:
        return _failed(
            check,
            tried,
            kind,
            f"no result within {check.deadline_s:g} s: a call computes or waits without an end{_place(written)}. Wait "
            "with await, bound what depends on the policy's text, or move the work to asyncio.to_thread",
            TimeoutError.__name__,
        )
    return _failed(
        check,
        tried,
        kind,
        f"a call ended its process ({_how(process.exitcode)}); expected it to return or to raise",
        ChildProcessError.__name__,
    )


def _run(check: Check, tried: Subject, kind: str, writing: Connection, stack: IO[str]) -> None:
    """Send the outcome of a check; late, leave where it is in ``stack`` and end."""
    os.setsid()
    # A thread of the system's own, which needs no interpreter and ends the process also when its parent has died.
    faulthandler.dump_traceback_later(check.deadline_s, exit=True, file=stack)
    outcome = outcome_of(check, tried, kind, {})
    faulthandler.cancel_dump_traceback_later()
    writing.send(outcome)


def _end(process: multiprocessing.process.BaseProcess) -> None:
    """Kill a process and what it started, and wait for it."""
    if process.pid is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.join(GRACE_S)


def _place(stack: str) -> str:
    """Return in words where the environment was when its stack was written; empty: nobody knows."""
    for file, line, function in _FRAME.findall(stack):
        if not file.startswith(_OURS):
            return f", in {function} ({file}, line {line})"
    return ""


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"by signal {-code}"
    return f"with exit code {code}"


def _failed(check: Check, tried: Subject, kind: str, reason: str, error: str) -> CheckOutcome:
    return CheckOutcome(
        component=tried.label,
        kind=kind,
        check=check.name,
        status="FAILED",
        reason=reason,
        error=error,
    )

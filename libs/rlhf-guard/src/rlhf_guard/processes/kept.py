"""A command under the keeper: how it is started, with pipes of the caller's own, and how it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from . import keeper

STOP_LIMIT_S = 5.0
"""Time for the keeper to kill everything that it keeps."""


def keeper_command(command: Sequence[str], given: str) -> list[str]:
    """Return the words that run a command under a keeper which ends it with this process.

    Args:
        given: a descriptor, or ``IN:OUT:FOLDER``; see ``keeper``.
    """
    return [
        *(sys.executable, "-I", "-S", str(Path(keeper.__file__))),
        *(str(os.getpid()), given, *command),
    ]


def start_kept(
    command: Sequence[str], *, task: IO[bytes], folder: Path, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a command whose output is read from the pipes ``stdout`` and ``stderr`` of what this returns.

    However this process ends, the command, everything that it started and the folder are gone a moment later. The exit
    code is the command's, or 128 + the signal that ended it. ``end_kept`` ends it.

    Args:
        task: its standard input.
        folder: where it runs.

    Raises:
        OSError: there is no such program, or this process cannot start another one.
    """
    _require_program(command[0], folder, variables)
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            keeper_command(command, f"{task.fileno()}:{writing}:{folder}"),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(task.fileno(), writing),
            start_new_session=True,
            env=dict(variables),
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    process.stdout = os.fdopen(reading, "rb")
    return process


def end_kept(process: subprocess.Popen[bytes]) -> None:
    """Let the keeper kill the command and everything that it started, and wait until they are gone."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _require_program(name: str, folder: Path, variables: Mapping[str, str]) -> None:
    wanted = str(folder / name) if os.sep in name else name
    if shutil.which(wanted, path=variables.get("PATH", os.defpath)) is None:
        raise FileNotFoundError("there is no such program, or it may not be run")

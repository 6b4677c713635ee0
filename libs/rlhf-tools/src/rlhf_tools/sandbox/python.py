"""The sandboxed Python tool: a program in, its output back. Each program has a process and an empty folder of its own.

docs/tools.md says what the sandbox contains, and what it does not.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core import RolloutError

from ..bounded import Slots
from ..results import ToolFailure, ToolResult
from ..tool import Tool
from .inside import supervisor
from .inside.starting import command_of
from .limits import SandboxLimits
from .removal import remove_folder

_LOG = logging.getLogger(__name__)

_GRACE_S = 5.0
"""Seconds beyond its clock after which the supervisor itself is killed."""
_CPU_SIGNALS = (-signal.SIGXCPU, 128 + signal.SIGXCPU, -signal.SIGKILL, 128 + signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that ended."""

    output: str
    """Text of stdout and stderr, at most ``output_chars``."""
    cut: bool
    """Whether there was more output; the program was then killed."""
    why: str
    """Reason of its end: ``itself``, ``clock``, ``output``, ``processes``."""
    status: int
    """Exit status; above 128 and below 0: a signal."""
    seconds: float
    guards: Mapping[str, bool]
    """Guards that were up."""


class PythonSandbox:
    """Runs programs of the policy. One object serves all episodes."""

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        self.limits = limits or SandboxLimits()
        self.slots = Slots(self.limits.concurrency)

    async def run(self, code: str) -> Program:
        """Run a program in an empty folder, and return its output. Nothing of it is left when this returns or raises.

        Raises:
            RolloutError: the sandbox could not be built, or this machine lacks a guard that is required.
        """
        if sys.platform != "linux":
            raise RolloutError(
                f"the sandboxed Python tool needs Linux; this is {sys.platform}. Leave the tool out",
                code="sandbox/unavailable",
            )
        folder = Path(tempfile.mkdtemp(prefix=supervisor.FOLDER_PREFIX))
        try:
            return await self._run_in(folder, code)
        finally:
            await asyncio.to_thread(remove_folder, folder)

    async def _run_in(self, folder: Path, code: str) -> Program:
        process = await asyncio.create_subprocess_exec(
            *command_of(*_interpreter(), supervisor, json.dumps(self._settings())),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self.limits.wall_s + _GRACE_S):
                return await self._talk(process, code)
        except TimeoutError as error:
            raise RolloutError(
                f"a sandboxed program did not end {_GRACE_S:g} s after its clock of {self.limits.wall_s:g} s; it was "
                "killed. The machine may be overloaded: lower the number of programs at once",
                code="sandbox/failed",
            ) from error
        finally:
            await _end(process)

    async def _talk(self, process: asyncio.subprocess.Process, code: str) -> Program:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        program = code.encode("utf-8", errors="replace")
        process.stdin.write(b"%d\n%s" % (len(program), program))
        reporting = asyncio.ensure_future(process.stderr.read())
        try:
            output, cut = await _output(process.stdout, 2 * self.limits.output_chars)
            if cut:
                process.stdin.close()
            report = _report(await reporting)
        finally:
            reporting.cancel()
            await asyncio.wait({reporting})
        text = output.decode("utf-8", errors="replace")
        most = self.limits.output_chars
        return Program(
            output=text[:most],
            cut=cut or len(text) > most,
            why="output" if cut else report["why"],
            status=report["status"],
            seconds=report["seconds"],
            guards=report["guards"],
        )

    def _settings(self) -> dict[str, Any]:
        limits, mib = self.limits, 1 << 20
        flags = ["-s", "-P", "-B", "-X", "utf8", *([] if limits.packages else ["-S"])]
        (python,) = [sys.executable] if limits.packages else _interpreter()
        packages = [sys.prefix, *(path for path in sys.path if path)] if limits.packages else []
        return {
            "command": [python, *flags, "-"],
            "seconds": limits.wall_s,
            "processes": limits.processes,
            "require": list(limits.require),
            "readable": [sys.base_prefix, *packages],
            "limits": {
                "RLIMIT_CPU": limits.cpu_s,
                "RLIMIT_AS": limits.memory_mib * mib,
                "RLIMIT_FSIZE": limits.file_mib * mib,
                "RLIMIT_NOFILE": limits.open_files,
                "RLIMIT_NPROC": limits.processes + 16,  # threads count too
                "RLIMIT_CORE": 0,
            },
        }


def python_tool(limits: SandboxLimits | None = None, *, name: str = "python") -> Tool:
    """Return the tool by which a policy runs Python programs in a sandbox."""
    sandbox = PythonSandbox(limits)

    async def run(arguments: Mapping[str, Any]) -> ToolResult:
        code = arguments.get("code")
        if not isinstance(code, str) or len(arguments) > 1:
            return ToolResult.failed(
                ToolFailure.INVALID_ARGUMENTS, "expected code, a text, and no other argument"
            )
        return _result(await sandbox.run(code), sandbox.limits)

    return Tool(
        name=name,
        description="Run a Python program and return what it prints. Nothing is kept between calls; there is no "
        "network and no input.",
        parameters={
            "type": "object",
            "properties": {"code": {"type": "string", "description": "the whole program"}},
            "required": ["code"],
        },
        run=run,
        # The sandbox has a clock of its own.
        timeout_s=sandbox.limits.wall_s + 2 * _GRACE_S,
        slots=sandbox.slots,
    )


def _result(program: Program, limits: SandboxLimits) -> ToolResult:
    """Return a program's output for the policy, with a last line that says why it ended early."""
    failure, note = None, ""
    if program.why == "clock":
        failure, note = ToolFailure.TIMEOUT, f"killed after {limits.wall_s:g} s"
    elif program.why == "processes":
        failure, note = ToolFailure.LIMIT, f"killed: more than {limits.processes} processes"
    elif program.cut:
        failure, note = ToolFailure.LIMIT, f"output cut off after {limits.output_chars} characters"
    elif program.status in _CPU_SIGNALS:
        failure, note = ToolFailure.LIMIT, "killed by a limit of computation or memory"
    elif program.status:
        failure, note = ToolFailure.FAILED, f"exit status {program.status}"
    output = program.output
    text = output if not note else f"{output.rstrip()}\nerror ({failure}): {note}".lstrip()
    return ToolResult(text=text, failure=failure)


async def _output(stream: asyncio.StreamReader, most: int) -> tuple[bytes, bool]:
    """Return the output up to ``most`` bytes, and whether there is more."""
    output = b""
    while part := await stream.read(1 << 16):
        output += part
        if len(output) > most:
            return output[:most], True
    return output, False


def _report(text: bytes) -> dict[str, Any]:
    """Return the supervisor's report."""
    try:
        reports = [json.loads(line) for line in text.splitlines()]
    except ValueError:
        reports = []
    broken = next((one["broken"] for one in reports if "broken" in one), None)
    if not reports or broken is not None:
        said = broken or text.decode("utf-8", errors="replace").strip()[-500:] or "nothing"
        raise RolloutError(
            f"the sandbox could not start the program; it said: {said}", code="sandbox/failed"
        )
    report: dict[str, Any] = reports[-1]
    if "missing" in report:
        missing = ", ".join(report["missing"])
        raise RolloutError(
            f"this machine cannot guard {missing} of the sandboxed Python tool (Linux with Landlock, 5.13 or later, "
            f"guards files; namespaces guard processes). If programs may run without it, take {missing} out of the "
            "sandbox's `require`",
            code="sandbox/unavailable",
        )
    return report


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill a supervisor that still runs, with its session, and wait for it; its end is the end of its namespaces."""
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            _LOG.debug("the sandbox ended by itself")
    await asyncio.shield(_read_out(process))


async def _read_out(process: asyncio.subprocess.Process) -> None:
    """Wait for a process that was killed.

    asyncio tells of an exit once every pipe has been read to its end, and reads no further where output was left.
    """
    try:
        async with asyncio.timeout(_GRACE_S):
            for stream in (process.stdout, process.stderr):
                while stream is not None and await stream.read(1 << 16):
                    pass
            await process.wait()
    except TimeoutError:
        _LOG.warning(
            "something that a sandboxed program started holds its output open %g s after it was killed; where this "
            "machine has namespaces of processes, the option `require` can demand them",
            _GRACE_S,
        )


def _interpreter() -> tuple[str]:
    """Return Python itself: that of a virtual environment is a link, whose packages a program must not see."""
    return (os.path.realpath(sys.executable),)

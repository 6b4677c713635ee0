"""A container for an episode, through the command line of an engine: docker, podman, or one with the same words."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rlhf_core import RolloutError

from .folders import HarborFolder
from .machine import Ran, bounded_output

_BUILDS: dict[tuple[str, str], asyncio.Lock] = {}
_BUILD_S = 3600.0
_ENGINE_S = 120.0
_SAID_BYTES = 2**16
_LATE = 124
"""Status of ``timeout`` for a command that it killed."""


class ContainerMachine:
    """A container, whose image is built once for each task and engine.

    Args:
        engine: the program, such as ``docker`` or ``podman``.
    """

    def __init__(self, task: HarborFolder, engine: str) -> None:
        self._task, self._engine = task, engine
        digest = hashlib.sha256(str(task.path).encode()).hexdigest()[:24]
        self._image = task.image or f"rlhf-harbor-{digest}"
        self._name = f"rlhf-harbor-{secrets.token_hex(12)}"
        self._is_started = False

    async def start(self) -> None:
        """Build the image, which the engine keeps, and start the container."""
        key = (self._engine, self._image)
        async with _BUILDS.setdefault(key, asyncio.Lock()):
            if not self._task.image:
                context = str(self._task.path / "environment")
                await self._called(["build", "-q", "-t", self._image, context], _BUILD_S)
        self._is_started = True
        limits = ["--cpus", f"{self._task.cpus:g}", "--memory", f"{self._task.memory_mib}m"]
        network = [] if self._task.has_internet else ["--network", "none"]
        start = ["run", "-d", "--rm", "--name", self._name, *limits, *network]
        await self._called([*start, "--entrypoint", "sleep", self._image, "infinity"], _ENGINE_S)

    async def run(
        self, command: str, seconds: float, variables: Mapping[str, str], most: int
    ) -> Ran:
        """Run a command. What it leaves running lives on in the container, as in Harbor."""
        given = [part for name, value in variables.items() for part in ("-e", f"{name}={value}")]
        where = ["-w", self._task.workdir] if self._task.workdir else []
        # The engine's client can be killed, but not what it started; so the deadline is kept inside.
        limited = ["timeout", "-s", "KILL", "-k", "1", f"{seconds:g}", "bash", "-c", command]
        words = ["exec", *given, *where, self._name, *limited]
        status, output, is_cut = await self._asked(words, seconds + _ENGINE_S, 4 * most)
        text = output.decode(errors="replace")
        return Ran(
            output=text[:most],
            status=status,
            is_cut=is_cut or len(text) > most,
            is_late=status in (_LATE, 137),
        )

    async def place_tests(self, tests: Path) -> None:
        """Kill what the policy left running, and put the verifier in its place."""
        # A kill of all spares number 1, which is the container's sleep, and the shell that asks for it.
        clean = (
            "kill -s KILL -- -1; rm -rf /tests /logs/verifier; mkdir -p /logs/verifier /logs/agent"
        )
        await self._called(["exec", "-u", "0", self._name, "bash", "-c", clean], _ENGINE_S)
        await self._called(["cp", str(tests), f"{self._name}:/tests"], _ENGINE_S)

    async def reward_file(self, name: str, most: int) -> bytes | None:
        """Return a file of the verifier's, which is read inside of the container, where a link leads nowhere else."""
        path = shlex.quote(f"/logs/verifier/{name}")
        script = f"[ -f {path} ] && [ ! -L {path} ] && head -c {most + 1} {path}"
        words = ["exec", self._name, "bash", "-c", script]
        status, output, _ = await self._asked(words, _ENGINE_S, most + 1)
        return output if status == 0 else None

    async def close(self) -> None:
        """Remove the container."""
        if self._is_started:
            self._is_started = False
            await self._called(["rm", "-f", self._name], _ENGINE_S, ok=(0, 1))

    async def _called(self, words: Sequence[str], seconds: float, ok: Sequence[int] = (0,)) -> None:
        status, output, _ = await self._asked(words, seconds, _SAID_BYTES)
        if status not in ok:
            said = output.decode(errors="replace").strip()[-500:]
            raise RolloutError(
                f"{self._engine} {words[0]} ended with status {status}: {said}",
                code="container/failed",
            )

    async def _asked(
        self, words: Sequence[str], seconds: float, most: int
    ) -> tuple[int, bytes, bool]:
        try:
            process = await asyncio.create_subprocess_exec(
                self._engine,
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            raise RolloutError(
                f"engine = {self._engine!r}: expected a program that runs containers ({error})",
                code="container/no-engine",
            ) from error
        assert process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                output, is_cut = await bounded_output(process.stdout, most)
                return await process.wait(), output, is_cut
        except TimeoutError as error:
            raise RolloutError(
                f"{self._engine} {words[0]} did not end within {seconds:g} s",
                code="container/failed",
            ) from error
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await asyncio.shield(process.wait())

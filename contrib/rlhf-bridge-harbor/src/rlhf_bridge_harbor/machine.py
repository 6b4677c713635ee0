"""Machine of one episode, in which the policy's commands and the verifier run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A command that ended."""

    output: str
    """Text of both of its outputs, at most as long as was asked."""
    status: int
    """Exit status; above 128: a signal."""
    is_cut: bool
    """Whether there was more output, which is not kept."""
    is_late: bool
    """Whether it was killed at its deadline."""


class Machine(Protocol):
    """A container, or a sandbox of this machine."""

    async def start(self) -> None:
        """Make it as the task's environment says.

        Raises:
            RolloutError: it cannot be made.
        """

    async def run(
        self, command: str, seconds: float, variables: Mapping[str, str], most: int
    ) -> Ran:
        """Run a command of bash in the task's folder, and return ``most`` characters of its output."""

    async def place_tests(self, tests: Path) -> None:
        """Put the verifier at /tests, and an empty folder at /logs/verifier, whatever was there."""

    async def reward_file(self, name: str, most: int) -> bytes | None:
        """Return up to ``most + 1`` bytes of a plain file of /logs/verifier; None: there is no such file."""

    async def close(self) -> None:
        """End it, and remove what it has left."""


async def bounded_output(stream: asyncio.StreamReader, most: int) -> tuple[bytes, bool]:
    """Return the output's first bytes, and whether there was more; all of it is read, so that nobody waits to write."""
    kept = bytearray()
    is_cut = False
    while part := await stream.read(2**16):
        room = most - len(kept)
        kept += part[:room]
        is_cut = is_cut or len(part) > room
    return bytes(kept), is_cut

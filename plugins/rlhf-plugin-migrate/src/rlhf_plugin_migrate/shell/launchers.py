"""The module of OpenRLHF that a command starts, whatever launches it: python, deepspeed, torchrun, ray job submit."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from .script import ShellCommand
from .unresolved import without_arguments

_MODULE = re.compile(r"openrlhf\.cli\.(\w+)")
_SECRETS = re.compile(r"(--runtime-env-json|[A-Za-z_]\w*)=.*", re.DOTALL)
_COUNTS = {
    "__num_gpus": "node",
    "__nproc_per_node": "node",
    "__num_processes": "node",
    "__num_nodes": "nodes",
    "__nnodes": "nodes",
}
"""Flag of a launcher, with underscores for dashes -> whether it counts processes of a node, or nodes."""
_FILE = re.compile(r"(?:.*/)?openrlhf/cli/(\w+)\.py")


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a program of OpenRLHF."""

    program: str
    """Its name, such as ``train_ppo_ray``."""
    words: tuple[str, ...]
    """The words after it: its flags."""
    launcher: str
    """The words before it as one line, without the values of variables."""
    line: int
    """Line of the script on which the command begins."""
    processes: int | None = None
    """Number of processes that the launcher starts; None: it does not say."""
    unresolved: tuple[str, ...] = ()
    """Expansions that only the shell could work out."""


def launch_of(command: ShellCommand) -> Launch | None:
    """Return the start of OpenRLHF's program in a command, or None if there is none."""
    for index, word in enumerate(command.words):
        found = _MODULE.fullmatch(word) or _FILE.fullmatch(word)
        if found:
            before = hidden((*command.environment, *command.words[:index]))
            return Launch(
                program=found[1],
                words=without_arguments(command.words[index + 1 :]),
                launcher=" ".join(before),
                line=command.line,
                processes=processes_of(command.words[:index]),
                unresolved=tuple(
                    part
                    for part in dict.fromkeys(command.unresolved)
                    if any(part in word for word in command.words[index + 1 :])
                ),
            )
    return None


def hidden(words: Sequence[str]) -> list[str]:
    """Return words without the values of variables, which may be keys of services."""
    return [_SECRETS.sub(r"\1=...", word) for word in words]


def processes_of(words: Sequence[str]) -> int | None:
    """Return the number of processes that a launcher is told to start; None: it is not told a number."""
    counts: dict[str, int] = {}
    parts = [part for word in words for part in word.split("=", 1)]
    for flag, value in itertools.pairwise(parts):
        kind = _COUNTS.get(flag.replace("-", "_"))
        if kind and not value.isdecimal():
            return None
        if kind:
            counts[kind] = int(value)
    return counts["node"] * counts.get("nodes", 1) if "node" in counts else None


def launches_of(commands: Sequence[ShellCommand]) -> list[Launch]:
    """Return all starts of OpenRLHF's programs, in order."""
    return [launch for command in commands if (launch := launch_of(command))]

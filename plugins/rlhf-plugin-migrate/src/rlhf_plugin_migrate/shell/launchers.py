"""Programs of the other frameworks that a command starts, whatever launches it: python, deepspeed, ray job submit."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..table.outcome import Outcome, ReportRow, Status
from .script import ShellCommand
from .unresolved import advice_on, without_arguments

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One start of a program."""

    program: str
    """Its name, such as ``train_ppo_ray``."""
    title: str = ""
    """The program as it was written."""
    words: tuple[str, ...]
    """The words after it: its flags, or what it has in their place."""
    launcher: str = ""
    """The words before it as one line, without the values of variables."""
    line: int = 1
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
            return launch_at(command, index, found[1])
    return None


def launch_at(command: ShellCommand, index: int, program: str) -> Launch:
    """Return the start of a program, of which the word at ``index`` is the last one before its flags."""
    before, rest = command.words[:index], command.words[index + 1 :]
    left = (part for part in command.unresolved if any(part in word for word in rest))
    return Launch(
        program=program,
        title=command.words[index],
        words=without_arguments(rest),
        launcher=" ".join(hidden((*command.environment, *before))),
        line=command.line,
        processes=processes_of(before),
        unresolved=tuple(dict.fromkeys(left)),
    )


def note_launch(launch: Launch, outcome: Outcome, further: str = "") -> Outcome:
    """Return the outcome with what is to be said of its launch.

    Args:
        further: another way to start the result, behind the usual one.
    """
    outcome.warnings += [f"{part}: {advice_on(part)}" for part in launch.unresolved]
    if launch.launcher:
        text = f"rlhf {outcome.command} -c FILE{further}"
        outcome.others.append(ReportRow(f"{launch.launcher} ...", Status.NOTHING, text))
    return outcome


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

"""Expansions that a script's text does not decide: what to do about each, and loops that give one many values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from .script import ShellCommand

_ARGUMENT = re.compile(r"\$(?:\{)?[1-9]")
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]")
_ARGUMENTS = re.compile(r"\$(?:[@*]|\{[@*](?::[^}]*)?\})")


def advice_on(part: str) -> str:
    """Return why an expansion has no value, and how to give it one."""
    if _ARGUMENT.match(part):
        return (
            "an argument of the shell script, which is not known here: write the value in its place"
        )
    if _ARGUMENTS.fullmatch(part):
        return "all arguments of the shell script, which are not known here: add those that you start it with"
    if _VARIABLE.match(part):
        return "only a shell could work it out: replace it, or give --set"
    return (
        "only a shell could work it out: replace it, or give --set for the variable that it is in"
    )


def without_arguments(words: Sequence[str]) -> tuple[str, ...]:
    """Return words without those that stand for all arguments of the script: without any they are no words, and beside
    a flag they would be its value."""
    return tuple(word for word in words if not _ARGUMENTS.fullmatch(word))


def remarks_on_loops(commands: Sequence[ShellCommand]) -> Iterator[str]:
    """Yield a line for each loop whose variable a command uses: it stays one command here."""
    for loop in commands:
        if loop.words[0] != "for" or loop.words[2:3] != ("in",):
            continue
        name = loop.words[1]
        uses = {f"${name}", f"${{{name}}}"}
        if any(uses & {*command.unresolved} for command in commands):
            yield (
                f"warning: line {loop.line}: the loop runs its commands for {name} in {' '.join(loop.words[3:])}; "
                f"each is migrated once, without a value of {name}. Migrate again for each value, "
                f"with --set {name}=VALUE"
            )


def remarks_on_assumptions(commands: Sequence[ShellCommand]) -> Iterator[str]:
    """Yield a line for each probe and each branch of which the reader assumed something."""
    for what, how in dict(pair for command in commands for pair in command.assumed).items():
        yield f"warning: {what}: {how}; --set NAME=VALUE gives a variable its value"


def remarks_on_script(commands: Sequence[ShellCommand]) -> Iterator[str]:
    """Yield all lines on loops, assumptions and exported variables."""
    yield from remarks_on_loops(commands)
    yield from remarks_on_assumptions(commands)
    yield from remark_on_exports(commands)


def remark_on_exports(commands: Sequence[ShellCommand]) -> Iterator[str]:
    """Yield a line that names all variables that the script exports: a configuration sets none."""
    if names := dict.fromkeys(name for command in commands for name in command.exported):
        yield (
            f"warning: variables that the script exports are not in the configuration: {', '.join(names)}; "
            "export those that you need before the run"
        )


def remarks_on_values(names: Iterable[str], text: str) -> Iterator[str]:
    """Yield a line for each variable that a value was given for and that the script does not name."""
    for name in names:
        if not re.search(rf"\b{name}\b", text):
            yield f"warning: --set {name}=... changes nothing: the script has no {name}"

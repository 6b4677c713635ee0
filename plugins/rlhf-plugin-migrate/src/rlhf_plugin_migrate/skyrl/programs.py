"""Programs of SkyRL that a command starts: how each is migrated, or why it is not."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..shell.launchers import hidden
from ..shell.script import ShellCommand
from ..shell.unresolved import advice_on, without_arguments
from ..table.outcome import Outcome, ReportRow, Status
from ..verl.common.hydra import options_of, pairs_of
from .keys import KEYS
from .main_base import migrate

_PROGRAM = re.compile(
    r"(?:.*/)?((?:skyrl|skyrl_train|examples|integrations)[./](?:\w+[./])*(\w*main\w*))(?:\.py)?"
)
_OVERRIDE = re.compile(r"(?:data|trainer|generator|environment)\.[\w.]+=")
_OWN = ("skyrl.train.entrypoints.main_base", "skyrl_train.entrypoints.main_base")
_ELSEWHERE = {
    "main_sft": "rlhf sft",
    "main_generate": "rlhf eval",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyRLLaunch:
    """One start of a program of SkyRL, or of one that is built on it."""

    program: str
    """Last part of the module, such as ``main_base``."""
    title: str
    """The module, with dots."""
    words: tuple[str, ...]
    """The words behind it: overrides."""
    launcher: str
    """The words before it, without the values of variables."""
    line: int
    """Line of the script on which the command begins."""
    unresolved: tuple[str, ...] = ()
    """Expansions that only the shell could work out."""

    @property
    def refusal(self) -> str:
        """Why the program has no table; empty if it has one."""
        instead = _ELSEWHERE.get(self.program)
        what = f"expected a program of SkyRL that trains with rewards; here: {instead}"
        return f"line {self.line}: {self.title}: {what}" if instead else ""


def skyrl_launch_of(command: ShellCommand) -> SkyRLLaunch | None:
    """Return the start of a program of SkyRL in a command, or None if there is none."""
    for index, word in enumerate(command.words):
        found, rest = _PROGRAM.fullmatch(word), command.words[index + 1 :]
        is_sft = found is not None and found[2] == "main_sft"
        if found is None or not (is_sft or any(map(_OVERRIDE.match, rest))):
            continue
        return SkyRLLaunch(
            program=found[2],
            title=found[1].replace("/", "."),
            words=without_arguments(rest),
            launcher=" ".join(hidden((*command.environment, *command.words[:index]))),
            line=command.line,
            unresolved=tuple(
                part
                for part in dict.fromkeys(command.unresolved)
                if any(part in word for word in without_arguments(rest))
            ),
        )
    return None


def launched(launch: SkyRLLaunch, adapter: str) -> Outcome:
    """Return the configuration of a launch, with what is to be said of it; the argument is that of ``migrate``."""
    source = options_of(*pairs_of(launch.words), KEYS)
    outcome = migrate(source, adapter, runs_ahead="async" in launch.program)
    if launch.title not in _OWN:
        outcome.warnings.append(
            f"{launch.title} is not read: what it registers or replaces (environments, estimators, losses, the "
            "trainer) has to be written here, too"
        )
    outcome.warnings += [f"{part}: {advice_on(part)}" for part in launch.unresolved]
    text = f"rlhf {outcome.command} -c FILE"
    outcome.others.append(ReportRow(f"{launch.launcher} ...", Status.NOTHING, text))
    return outcome

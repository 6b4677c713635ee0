"""Programs of SkyRL that a command starts: how each is migrated, or why it is not."""

from __future__ import annotations

import re
from pathlib import Path

from ..shell.launchers import Launch, launch_at, note_launch
from ..shell.script import ShellCommand
from ..table.option_table import tables_of
from ..table.outcome import Outcome
from ..verl.common.hydra import options_of, pairs_of
from ..verl.reinforcement.engine_keys import vllm_argument
from .main_base import migrate

_PROGRAM = re.compile(
    r"(?:.*/)?(?:skyrl|skyrl_train|examples|integrations)[./](?:\w+[./])*(\w*main\w*)(?:\.py)?"
)
_OVERRIDE = re.compile(r"(?:data|trainer|generator|environment)\.[\w.]+=")
_OWN = re.compile(r"(?:.*/)?skyrl(?:[./]|_)train[./]entrypoints[./]main_base(?:\.py)?")
"""SkyRL's own trainer, of which nothing is replaced."""
_ELSEWHERE = {
    "main_sft": "rlhf sft",
    "main_generate": "rlhf eval",
}


def skyrl_launch_of(command: ShellCommand) -> Launch | None:
    """Return the start of a program of SkyRL, or of one that is built on it, or None if there is none."""
    for index, word in enumerate(command.words):
        found, rest = _PROGRAM.fullmatch(word), command.words[index + 1 :]
        if found and (found[1] == "main_sft" or any(map(_OVERRIDE.match, rest))):
            return launch_at(command, index, found[1])
    return None


def refusal_of(launch: Launch) -> str:
    """Return why a program has no table; empty if it has one."""
    instead = _ELSEWHERE.get(launch.program)
    what = f"expected a program of SkyRL that trains with rewards; here: {instead}"
    return f"line {launch.line}: {launch.title}: {what}" if instead else ""


def launched(launch: Launch, adapter: str) -> Outcome:
    """Return the configuration of a launch, with what is to be said of it; the argument is that of ``migrate``."""
    source = options_of(*pairs_of(launch.words), TABLES["main_base"])
    outcome = migrate(source, adapter, runs_ahead="async" in launch.program)
    if not _OWN.fullmatch(launch.title):
        outcome.warnings.append(
            f"{launch.title} is not read: what it registers or replaces (environments, estimators, losses, the "
            "trainer) has to be written here, too"
        )
    return note_launch(launch, outcome)


TABLES = tables_of(Path(__file__).with_name("options.toml"), {"VLLM_ARGUMENT": vllm_argument})
"""The table of SkyRL's trainer."""

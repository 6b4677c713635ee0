"""A launch of TRL's scripts, such as ``trl grpo`` or ``accelerate launch dpo.py``, as the keys of their YAML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import yaml

from rlhf_core import ConfigError

from ..shell.launchers import Launch, launch_at, processes_of
from ..shell.script import ShellCommand
from ..table.kinds import as_in_yaml
from .common.yaml_file import read_table

_FILE = re.compile(r"(?:.*/)?(grpo|gspo|sft|dpo)(?:_\w+)?\.py|trl\.scripts\.(grpo|sft|dpo)")
"""A script of TRL, as a file or as a module."""
_AS = {"gspo": "grpo"}
_ELSEWHERE = {
    "kto": "rlhf dpo --preference.loss kto",
    "reward": "rlhf rm",
    "rloo": "rlhf train --estimator rloo",
    "distillation": "rlhf distill",
}
"""Command of TRL without a table -> what does the same here."""
_LISTS = {"reward_weights"}
"""Keys whose value is a list even of one word."""


def trl_launch_of(command: ShellCommand) -> Launch | None:
    """Return the start of a script of TRL in a command, or None if there is none."""
    words = command.words
    for index, word in enumerate(words):
        # A script's file is an argument of what launches it; the command ``trl`` has its script as its argument.
        if index > 0 and (found := _FILE.fullmatch(word)):
            program = found[1] or found[2]
            return launch_at(command, index, _AS.get(program, program))
        if (
            word.rpartition("/")[2] == "trl"
            and "".join(words[index + 1 : index + 2]).isidentifier()
        ):
            # What the script is started with is among its own flags, too.
            launch = launch_at(command, index + 1, words[index + 1])
            return replace(launch, processes=processes_of(words))
    return None


def refusal_of(program: str) -> str:
    """Return why a script of TRL has no table, with what does the same here."""
    instead = _ELSEWHERE.get(program)
    advice = f"; {instead} does the same, with options written by hand" if instead else ""
    return f"trl {program}: expected grpo, sft or dpo{advice}"


def yaml_of(launch: Launch, read: Callable[[str], str]) -> str:
    """Return the text of the YAML file that sets the same keys: those of ``--config``, and the flags, which win.

    Args:
        read: text of a file.

    Raises:
        ConfigError: a word belongs to no flag, or the file of ``--config`` is none.
    """
    keys: dict[str, object] = {}
    unknown = {*launch.unresolved}
    for flag, words in _flags(launch.words):
        # Behind a value a variable without one holds further flags, or nothing.
        values = [*words[:1], *(word for word in words[1:] if word not in unknown)]
        if flag in _LISTS or len(values) > 1:
            keys[flag] = [as_in_yaml(value) for value in values]
        else:
            keys[flag] = as_in_yaml(values[0]) if values else True
    if (config := keys.pop("config", None)) is not None:
        keys = read_table(read(str(config)), str(config)) | keys
    for of_launcher in ("num_processes", "num_machines", "accelerate_config"):
        keys.pop(of_launcher, None)
    text: str = yaml.safe_dump(keys, sort_keys=False)
    return text


def _flags(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.removeprefix("--").partition("=")
            found.append((flag.replace("-", "_"), [value] if equals else []))
        elif found:
            found[-1][1].append(word)
        else:
            raise ConfigError(
                f"rlhf migrate: {word}: expected a flag of TRL's script before it",
                code="migrate/missing-flag",
            )
    return found

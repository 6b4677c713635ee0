"""Programs of prime-rl: the one that a file is for, and launches that name files with ``@``."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rlhf_core import ConfigError

from ..shell.launchers import Launch, launch_at, note_launch
from ..shell.script import ShellCommand
from ..table.kinds import as_in_yaml
from ..table.option_table import tables_of
from ..table.outcome import Outcome
from ..table.source import Written
from ..verl.common.hydra import Pair, flattened, options_of
from ..verl.reinforcement.engine_keys import vllm_argument
from . import rl, sft


def prime_rl_launch_of(command: ShellCommand) -> Launch | None:
    """Return the start of ``rl`` or ``sft`` in a command, or None if there is none."""
    for index, word in enumerate(command.words):
        if word in TABLES and "@" in command.words[index + 1 :]:
            return launch_at(command, index, word)
    return None


def launched(launch: Launch, read: Callable[[str], str]) -> Outcome:
    """Return the configuration of a launch, with what is to be said of it.

    Args:
        read: text of a file.
    """
    of_files: list[Pair] = []
    flags: list[Pair] = []
    others: list[str] = []
    section = ""
    groups = _groups(launch.words)
    for group, behind in itertools.zip_longest(groups, groups[1:], fillvalue=[""]):
        word, *values = group
        key = word.removeprefix("--").replace("-", "_")
        if word == "@" and values:
            of_files += pairs_of_toml(read(values[0]), values[0], section)
            others += values[1:]
            section = ""
        elif not word.startswith("--"):
            others += group
        elif not values and behind[0] == "@":
            section = f"{key}."
        else:
            given = [_unset(as_in_yaml(value)) for value in values] or [True]
            flags.append((" ".join(group), key, given if len(given) > 1 else given[0]))
    return note_launch(launch, migrate([*of_files, *flags], launch.program, others))


def _groups(words: Sequence[str]) -> list[list[str]]:
    """Return flags and the signs ``@``, each with the words behind it."""
    groups: list[list[str]] = []
    for word in words:
        if word == "@" or word.startswith("--") or not groups:
            groups.append([])
        groups[-1].append(word)
    return groups


def pairs_of_toml(text: str, name: str, section: str = "") -> list[Pair]:
    """Return the keys of a TOML file.

    Args:
        name: the file, in words.
        section: beginning of its keys.

    Raises:
        ConfigError: the text is no TOML.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"rlhf migrate: {name}: not valid TOML: {error}", code="migrate/unreadable-script"
        ) from error
    found = flattened(table, section)
    return [(f"{key} = {_shown(value)}", key, _unset(value)) for key, value in found]


def program_of(pairs: Sequence[Pair], name: str) -> str:
    """Return the program that keys are for.

    Raises:
        ConfigError: they are for neither.
    """
    tops = {key.partition(".")[0] for _, key, _ in pairs}
    if tops & {"orchestrator", "trainer"}:
        return "rl"
    if "data" in tops:
        return "sft"
    raise ConfigError(
        f"rlhf migrate: {name}: expected a file for prime-rl's rl, with a table orchestrator or trainer, or for its "
        f"sft, with a table data; got the tables {', '.join(sorted(tops)) or 'none'}",
        code="migrate/unknown-program",
    )


def migrate(pairs: Sequence[Pair], program: str, others: Sequence[str] = ()) -> Outcome:
    """Return the configuration that keys mean.

    Args:
        others: words of a launch that are no flags.
    """
    written = [Written(word, (), "expected @ FILE or --KEY VALUE") for word in others]
    source = options_of(pairs, written, TABLES[program])
    return rl.migrate(source) if program == "rl" else sft.migrate(source)


def _unset(value: object) -> object:
    return None if value == "None" else value


def _shown(value: object) -> str:
    if isinstance(value, Mapping | list) and any(isinstance(one, Mapping) for one in value):
        return f"[{len(value)} tables]"
    return str(value).lower() if isinstance(value, bool) else str(value)


TABLES = tables_of(Path(__file__).with_name("options.toml"), {"VLLM_ARGUMENT": vllm_argument})
"""The tables, by program."""

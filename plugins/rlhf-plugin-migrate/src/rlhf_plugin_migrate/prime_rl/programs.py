"""Programs of prime-rl: the one that a file is for, and launches that name files with ``@``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml

from rlhf_core import ConfigError

from ..shell.script import ShellCommand
from ..table.outcome import Outcome
from ..table.source import Written
from ..verl.common.hydra import Pair, flattened, options_of
from . import rl, sft
from .keys import RL, SFT

_PROGRAMS = ("rl", "sft")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimeRLLaunch:
    """One start of ``rl`` or ``sft``."""

    program: str
    files: tuple[tuple[str, str], ...]
    """TOML files, of which a later one wins, each behind the beginning of its keys, such as ``trainer.``."""
    overrides: tuple[Pair, ...]
    """Flags behind them."""
    others: tuple[str, ...]
    """Words that are no flags."""
    line: int


def prime_rl_launch_of(command: ShellCommand) -> PrimeRLLaunch | None:
    """Return the start of a program of prime-rl in a command, or None if there is none."""
    for index, word in enumerate(command.words):
        rest = command.words[index + 1 :]
        if word in _PROGRAMS and "@" in rest:
            return _launch(word, rest, command.line)
    return None


def _launch(program: str, words: Sequence[str], line: int) -> PrimeRLLaunch:
    files: list[tuple[str, str]] = []
    section = ""
    pairs: list[Pair] = []
    others: list[str] = []
    pending = list(words)
    while pending:
        word = pending.pop(0)
        values: list[str] = []
        while pending and not pending[0].startswith("--") and pending[0] != "@":
            values.append(pending.pop(0))
        if word == "@" and values:
            files.append((section, values[0]))
            others += values[1:]
            section = ""
        elif word.startswith("--") and not values and pending[:1] == ["@"]:
            section = f"{_key(word)}."
        elif word.startswith("--"):
            read = [_value(value) for value in values]
            value = True if not read else read[0] if len(read) == 1 else read
            pairs.append((" ".join([word, *values]), _key(word), value))
        else:
            others.append(word)
    return PrimeRLLaunch(
        program=program, files=tuple(files), overrides=tuple(pairs), others=tuple(others), line=line
    )


def _key(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _value(word: str) -> object:
    try:
        return _unset(yaml.safe_load(word))
    except yaml.YAMLError:
        return word


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
    source = options_of(pairs, written, RL if program == "rl" else SFT)
    return rl.migrate(source) if program == "rl" else sft.migrate(source)


def _unset(value: object) -> object:
    return None if value == "None" else value


def _shown(value: object) -> str:
    if isinstance(value, Mapping | list) and any(isinstance(one, Mapping) for one in value):
        return f"[{len(value)} tables]"
    return str(value).lower() if isinstance(value, bool) else str(value)

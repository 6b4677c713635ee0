"""Overrides of hydra, and the YAML files that it reads and writes, as options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from rlhf_core import ConfigError

from ...table.entries import Missing, Nothing, OptionEntry, To
from ...table.kinds import NUMBER, SWITCH, TEXT, WHOLE, Value, as_in_yaml
from ...table.option_table import OptionTable
from ...table.outcome import nearest
from ...table.source import SourceOptions, Written

_OVERRIDE = re.compile(r"(\+\+|\+|~)?([\w.\-/@]+)(?:=(.*))?", re.DOTALL)
_INTERPOLATION = re.compile(r"\$\{([\w.]+)\}")
_FLAGS = {"--config-name": "config-name", "-cn": "config-name", "--config-path": "config-path"}
_FLAGS |= {"-cp": "config-path", "--config-dir": "config-path"}
_UNSET: tuple[object, ...] = (None, "", "???", [], {})

Pair = tuple[str, str, object]
"""A key as it was written, its name, and its value."""


def pairs_of(words: Sequence[str]) -> tuple[list[Pair], list[Written]]:
    """Return the overrides of a command line, and what is none, with the reason."""
    pairs: list[Pair] = []
    others: list[Written] = []
    rest = iter(words)
    for word in rest:
        flag, equals, text = word.partition("=")
        if flag in _FLAGS:
            value = text if equals else next(rest, "")
            pairs.append((f"{flag}={value}", _FLAGS[flag], value))
            continue
        found = _OVERRIDE.fullmatch(word)
        if found is None or (found[3] is None and found[1] != "~"):
            others.append(Written(word, (), "expected KEY=VALUE, as hydra reads"))
        elif found[1] == "~":
            problem = "a key that is taken out has no counterpart; verl's default is assumed"
            others.append(Written(word, (), problem))
        else:
            pairs.append((word, found[2], as_in_yaml(found[3])))
    return pairs, others


def pairs_of_text(text: str, name: str) -> tuple[list[Pair], list[Written]]:
    """Return the keys of a YAML file: a table as ``.hydra/config.yaml``, or overrides as ``.hydra/overrides.yaml``.

    Args:
        name: the file, in words.

    Raises:
        ConfigError: the text is neither.
    """
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"rlhf migrate: {name}: not valid YAML: {error}", code="migrate/unreadable-script"
        ) from error
    if isinstance(found, list) and all(isinstance(word, str) for word in found):
        return pairs_of(found)
    if isinstance(found, dict):
        return [(f"{key}={_shown(value)}", key, value) for key, value in flattened(found, "")], []
    raise ConfigError(
        f"rlhf migrate: {name}: expected the table or the list of overrides that hydra writes into .hydra",
        code="migrate/unreadable-script",
    )


def options_of(
    pairs: Sequence[Pair], others: Sequence[Written], table: OptionTable, *, is_whole: bool = False
) -> SourceOptions:
    """Return keys with their values as options. What cannot be read is kept with the reason.

    Args:
        others: what else was written.
        is_whole: the keys are all that a run has, so those that say nothing of its own are left out.
    """
    values = {name: value for _, name, value in pairs}
    entries = dict(table.entries)
    given: dict[str, Value] = {}
    written: list[Written] = []
    for text, spelled, value in pairs:
        entry = table.find(spelled)
        if is_whole and _is_everyones(spelled, value, entry, table):
            continue
        if entry is None:
            problem = (
                f"{table.framework} has no such key, or none that is known here."
                f"{nearest(spelled, iter(table.names))}"
            )
            written.append(Written(text, (), problem))
            continue
        entries[entry.name] = entry
        try:
            filled = _filled(value, values, table)
            # By its newest name a key may be emptied; by an older one it is left to the newest.
            is_emptied = filled is None and entry.kind is TEXT and spelled == entry.name
            read = None if is_emptied else _read(filled, entry)
        except ValueError:
            kind = "true or false" if entry.kind is SWITCH else entry.kind.name
            problem = (
                f"expected {kind}, got {_shown(value)}; {table.framework}'s default is assumed"
            )
            written.append(Written(text, (entry.name,), problem))
            continue
        if is_whole and _says_nothing(read, entry):
            continue
        if read is None and isinstance(entry.fate, To):
            entries[entry.name] = replace(entry, fate=Nothing("unset"))
        given[entry.name] = read
        written.append(Written(text, (entry.name,)))
    return SourceOptions(entries, given, [*written, *others], spelling="{}")


def flattened(table: Mapping[Any, object], beginning: str) -> Iterator[tuple[str, object]]:
    """Yield the keys of a table with dots between their parts, and their values.

    Args:
        beginning: what stands before each key.
    """
    for key, value in table.items():
        name = f"{beginning}{key}"
        if name in ("defaults", "hydra") or str(key) == "_target_":
            continue
        if isinstance(value, dict) and value:
            yield from flattened(value, f"{name}.")
        else:
            yield name, value


def _filled(
    value: object, values: Mapping[str, object], table: OptionTable, depth: int = 0
) -> object:
    """Return a text in which the keys that it names have their values."""
    if not isinstance(value, str) or depth > 8:
        return value

    def of(found: re.Match[str]) -> str:
        name = found[1]
        entry = table.find(name)
        known = values.get(name, entry.default if entry else None)
        return found[0] if known is None else str(_filled(known, values, table, depth + 1))

    return _INTERPOLATION.sub(of, value)


def _read(value: object, entry: OptionEntry) -> Value:
    """Return a value as its kind; an empty one is the default. YAML reads ``1e-6`` as text."""
    if value is None or value == "???":
        return entry.default
    if entry.kind is TEXT:
        if isinstance(value, str) and isinstance(entry.default, list):
            return as_in_yaml(value)  # a list within quotes
        return value  # type: ignore[return-value]  # lists and tables are read by the rules
    if entry.kind is SWITCH:
        known = {"true": True, "1": True, "false": False, "0": False}
        if (found := known.get(str(value).lower())) is None:
            raise ValueError(value)
        return found
    if entry.kind is WHOLE or entry.kind is NUMBER:
        number = float(str(value))
        if entry.kind is WHOLE and not number.is_integer():
            raise ValueError(value)
        return int(number) if entry.kind is WHOLE else number
    return entry.kind.read([str(value)])


def _is_everyones(name: str, value: object, entry: OptionEntry | None, table: OptionTable) -> bool:
    """Return whether a key of a whole configuration is one of those that all have: one without a default that is known
    here, of engines, profilers and the like, or one with another key's value."""
    if entry is None or "${" in str(value):
        return True
    return name not in table.names and isinstance(entry.fate, Missing | Nothing)


def _says_nothing(value: Value, entry: OptionEntry) -> bool:
    """Return whether a key of a whole configuration is as it is for everybody."""
    if isinstance(entry.fate, Nothing) or value == entry.default:
        return True
    if entry.default is None and value in _UNSET:
        return True
    return isinstance(entry.fate, Missing) and (value in _UNSET or value in entry.fate.off)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else str(value).replace("None", "null")

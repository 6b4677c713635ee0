"""A YAML file of TRL as options: values are converted as TRL's parser converts them."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from rlhf_core import ConfigError

from ...table.entries import OptionEntry
from ...table.kinds import SWITCH, TEXT, Value
from ...table.outcome import nearest
from ...table.source import SourceOptions, Written

_SECRET = {"hub_token"}


def read_keys(
    text: str, name: str, script: str, entries: Mapping[str, OptionEntry]
) -> SourceOptions:
    """Return the options of a file. What cannot be read is kept with the reason.

    Args:
        name: the file, in words.
        script: what TRL's script trains, in words.
        entries: table of the script.

    Raises:
        ConfigError: the text is not YAML, or no table.
    """
    values = read_table(text, name)
    given: dict[str, Value] = {}
    written: list[Written] = []
    for key, value in values.items():
        shown = "..." if key in _SECRET else value
        line = f"{key}: {shown}"
        if key not in entries:
            problem = f"TRL's script for {script} has no such key.{nearest(key, iter(entries))}"
            written.append(Written(line, (), problem))
            continue
        try:
            given[key] = _converted(value, entries[key])
            written.append(Written(line, (key,)))
        except (ValueError, TypeError):
            problem = f"expected {entries[key].kind.name}, got {value!r}; TRL's default is assumed"
            written.append(Written(line, (key,), problem))
    return SourceOptions(entries, given, written, spelling="{}")


def read_table(text: str, name: str) -> dict[str, object]:
    """Return the keys of a file with their values.

    Raises:
        ConfigError: the text is not YAML, or no table.
    """
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"rlhf migrate: {name}: not valid YAML: {error}", code="migrate/unreadable-script"
        ) from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(
            f"rlhf migrate: {name}: expected keys with values, as TRL's scripts read",
            code="migrate/unreadable-script",
        )
    return values


def _converted(value: object, entry: OptionEntry) -> Value:
    """Return a value as its kind. YAML 1.1 reads ``1e-6`` as text, which TRL's parser turns into a number, too."""
    if value is None or (entry.kind is TEXT and not isinstance(value, str)):
        return value  # type: ignore[return-value]  # lists and tables are read by the rules
    if entry.kind is SWITCH:
        if isinstance(value, bool):
            return value
        raise ValueError(value)
    return entry.kind.read([str(value)])

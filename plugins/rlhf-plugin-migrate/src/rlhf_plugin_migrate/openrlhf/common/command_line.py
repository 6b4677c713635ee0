"""Flags of OpenRLHF as argparse reads them: the dotted names, the flat ones of before, and beginnings of either."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...table.entries import OptionEntry
from ...table.kinds import Value
from ...table.option_table import tables_of
from ...table.outcome import nearest
from ...table.source import SourceOptions, Written

_FLAG = re.compile(r"--[A-Za-z_]")
_SECRET = {"logger.wandb.key"}

FLAGS = {
    program: table.entries
    for program, table in tables_of(Path(__file__).parents[1] / "options.toml").items()
}
"""Program -> its flags by the names of 0.11.2."""


def read_flags(words: Sequence[str], entries: Mapping[str, OptionEntry]) -> SourceOptions:
    """Return the options that the words of a command line set. What cannot be read is kept with the reason."""
    names = _names(entries)
    given: dict[str, Value] = {}
    written: list[Written] = []
    for flag, values in _split(words):
        known = _find(flag.removeprefix("--"), names)
        values, further = _without_further(values, entries[known[0]].kind.most if known else None)
        text = " ".join((flag, *values))
        if not flag:
            written.append(Written(" ".join(values), (), "it belongs to no flag"))
        elif not known:
            known_flags = (f"--{name}" for name in names)
            problem = f"OpenRLHF has no such flag.{nearest(flag, known_flags)}"
            written.append(Written(text, (), problem))
        else:
            shown = f"{flag} ..." if _SECRET & set(known) else text
            written.append(_read(shown, values, [entries[name] for name in known], given))
        if further:
            written.append(Written(" ".join(further), (), "it belongs to no flag"))
    return SourceOptions(entries, given, written)


def _names(entries: Mapping[str, OptionEntry]) -> dict[str, tuple[str, ...]]:
    """Return the entries that each spelling sets. A flat flag may have become several."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in entries.values():
        for spelling in (entry.name, *entry.old):
            found[spelling] = (*found.get(spelling, ()), entry.name)
    return found


def _find(flag: str, names: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if flag in names:
        return names[flag]
    longer = [name for name in names if name.startswith(flag)]
    return names[longer[0]] if len(longer) == 1 else ()


def _split(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return each flag with the words up to the next one. Words before the first flag come with an empty one."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if _FLAG.match(word):
            flag, equals, value = word.partition("=")
            found.append((flag, [value] if equals else []))
        elif found:
            found[-1][1].append(word)
        else:
            found.append(("", [word]))
    return found


def _without_further(words: Sequence[str], most: int | None) -> tuple[list[str], list[str]]:
    """Return a flag's words, and variables behind them that have no value: they hold further flags, or nothing."""
    end = len(words)
    while most is not None and end > most and words[end - 1].startswith("$"):
        end -= 1
    return [*words[:end]], [*words[end:]]


def _read(
    text: str, words: Sequence[str], entries: Sequence[OptionEntry], given: dict[str, Value]
) -> Written:
    """Put the value into ``given`` and return how it was written, or why it could not be read."""
    names = tuple(entry.name for entry in entries)
    kind = entries[0].kind
    few = len(words) < kind.least
    if few or (kind.most is not None and len(words) > kind.most):
        got = " ".join(words) or "nothing"
        return Written(
            text, names, f"expected {kind.name}, got {got}; OpenRLHF's default is assumed"
        )
    try:
        value = kind.read(words)
    except ValueError:
        return Written(
            text,
            names,
            f"expected {kind.name}, got {' '.join(words)}; OpenRLHF's default is assumed",
        )
    given |= dict.fromkeys(names, value)
    return Written(text, names)

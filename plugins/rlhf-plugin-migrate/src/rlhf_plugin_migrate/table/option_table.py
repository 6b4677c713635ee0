"""Tables of options in a TOML file, which has a line for every option of a framework's programs.

``framework`` is its name. ``[programs]`` lists the parts of each program's table; a part that differs between programs
is listed with the values that stand for ``<NAME>`` in it. A line of ``[parts.NAME]`` describes an option, as ``_Line``
has it, or it has the name of an entry of ``[fates]`` or ``fates.toml`` and all options with this fate whatever their
values; one that ends with a dot or ``*`` is the beginning of many. Of two lines for one option, the later one counts.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from . import kinds
from .entries import Fate, Missing, Nothing, OptionEntry, Rule, To
from .kinds import TEXT, Kind, Value, choice

_CONVERSIONS: dict[str, Callable[[Any], Value]] = {
    "": lambda value: value,
    "zero_is_none": lambda value: value or "none",
    "negated": lambda value: not value,
    "not_negative": lambda value: max(int(value), 0),
    "nll_or_dft": lambda value: "dft" if value == "dft" else "nll",
    "always_float32": lambda value: "float32",
    "offline_or_none": lambda value: "offline" if value else "none",
    "in_list": lambda value: [str(value)],
}
_KINDS = {bool: "switch", int: "whole", float: "number", str: "text"}
"""Type of a default -> the kind of an option that states none."""


class _Line(BaseModel):
    """An option with one of ``to``, ``rule``, ``nothing``, ``missing`` and ``fate``, which say what becomes of it."""

    model_config = ConfigDict(extra="forbid")

    kind: str | list[str] = ""
    """A kind's name, or the words of which it takes one; empty: the kind of its default."""
    default: Any = None
    old: str = ""
    """Its older names, with spaces between them."""
    fate: str = ""
    """Name of a fate that it shares with other options."""
    to: str | None = None
    convert: str = ""
    differs: str = ""
    if_given: bool = False
    rule: str | None = None
    """Options that rules may set for it, with spaces between them; ``a.{b,c}`` stands for ``a.b a.c``."""
    nothing: str | None = None
    missing: str | None = None
    off: list[Any] = [False]
    """Values beside an unset one with which a missing option does nothing."""

    def entry(self, name: str, fates: Mapping[str, Fate]) -> OptionEntry:
        """Return the entry of the option."""
        old = tuple(one for one in self.old.split() if one != name)
        return OptionEntry(name, self._kind(), self.default, self.fate_of(fates), old)

    def fate_of(self, fates: Mapping[str, Fate]) -> Fate:
        """Return what becomes of the option."""
        if self.fate:
            return fates[self.fate]
        if self.to is not None:
            return To(self.to, _CONVERSIONS[self.convert], self.differs, self.if_given)
        if self.rule is not None:
            return Rule(*(path for word in self.rule.split() for path in _expanded(word)))
        if self.nothing is not None:
            return Nothing(self.nothing)
        assert self.missing is not None, "a line says what becomes of its option"
        return Missing(self.missing, (None, *self.off))

    def _kind(self) -> Kind:
        if isinstance(self.kind, list):
            return choice(*self.kind)
        found: Kind = getattr(kinds, (self.kind or _KINDS[type(self.default)]).upper())
        return found


Beginning = Fate | Callable[[str], Fate]
"""Fate of all options that begin alike, or the function from the rest of a name to its fate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionTable:
    """Options of one program."""

    framework: str
    """Name of the framework, for messages."""
    entries: Mapping[str, OptionEntry]
    """By the newest name of each."""
    names: Mapping[str, str]
    """Every name, also an older one -> the newest."""
    beginnings: Mapping[str, Beginning]
    """Beginning of names -> what becomes of each."""

    def find(self, name: str) -> OptionEntry | None:
        """Return the entry of an option by any of its names; None: the program has no such option."""
        if name in self.names:
            return self.entries[self.names[name]]
        longest = max(filter(name.startswith, self.beginnings), key=len, default=None)
        if longest is None:
            return None
        fate, rest = self.beginnings[longest], name.removeprefix(longest)
        if callable(fate):
            fate = fate(rest)
        elif isinstance(fate, To):
            fate = replace(fate, option=f"{fate.option}{rest}")
        return OptionEntry(name, TEXT, None, fate)


def tables_of(
    file: Path, functions: Mapping[str, Callable[[str], Fate]] | None = None
) -> dict[str, OptionTable]:
    """Return the table of each program in a file.

    Args:
        functions: further fates of beginnings, by name.
    """
    found, shared = (
        tomllib.loads(one.read_text(encoding="utf-8"))
        for one in (file, Path(__file__).with_name("fates.toml"))
    )
    fates = {name: _Line(**said).fate_of({}) for name, said in (shared | found["fates"]).items()}
    return {
        program: _table(
            found["framework"],
            [_filled(found["parts"][values["part"]], values) for values in parts],
            fates,
            functions or {},
        )
        for program, parts in found["programs"].items()
    }


def _table(
    framework: str,
    parts: Sequence[dict[str, Any]],
    fates: Mapping[str, Fate],
    functions: Mapping[str, Callable[[str], Fate]],
) -> OptionTable:
    entries: dict[str, OptionEntry] = {}
    beginnings: dict[str, Beginning] = {}
    for name, said in (line for part in parts for line in part.items()):
        if not isinstance(said, str):
            entries[name] = _Line(**said).entry(name, fates)
            continue
        for one in said.split():
            if one.endswith((".", "*")):
                beginnings[one.removesuffix("*")] = functions.get(name) or fates[name]
            else:
                entries[one] = OptionEntry(one, TEXT, None, fates[name])
    names = {one: name for name, entry in entries.items() for one in (name, *entry.old)}
    return OptionTable(framework=framework, entries=entries, names=names, beginnings=beginnings)


def _filled(said: Any, values: Mapping[str, Any]) -> Any:
    """Return a part in which each ``<NAME>`` has its value; a value that there is not is unset."""
    if isinstance(said, dict):
        return {_filled(key, values): _filled(value, values) for key, value in said.items()}
    if isinstance(said, list):
        return [_filled(value, values) for value in said]
    if isinstance(said, str):
        whole = re.fullmatch(r"<(\w+)>", said)
        return (
            values.get(whole[1]) if whole else re.sub(r"<(\w+)>", lambda one: values[one[1]], said)
        )
    return said


def _expanded(word: str) -> list[str]:
    """Return the paths that a word with braces stands for."""
    found = re.fullmatch(r"([^{]*)\{([^}]*)\}(.*)", word)
    if found is None:
        return [word]
    return [path for one in found[2].split(",") for path in _expanded(f"{found[1]}{one}{found[3]}")]

"""Outcome of a migration: options with their values and comments, and a row for everything that was in the input."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum

from .entries import Missing, Nothing, Rule, To
from .kinds import Value
from .source import SourceOptions, Written

_WITHOUT_SHAPERS = ("gdpo", "remax")
"""Estimators that are refused with reward shapers."""
_SHAPING = ("reward.shapers", "reward.overlong.")


class Status(IntEnum):
    """Fate of an option as it was written; of several, the largest counts."""

    NOTHING = 0
    """It needs no counterpart."""
    MAPPED = 1
    """It has a counterpart of the same meaning."""
    DIFFERS = 2
    """It has a counterpart of another meaning."""
    MISSING = 3
    """It has no counterpart."""
    UNKNOWN = 4
    """The other framework does not have it, or its value cannot be read."""


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One line of the report."""

    what: str
    """The option as it was written."""
    status: Status
    text: str


@dataclass(frozen=True, slots=True)
class OptionSetting:
    """One option of the configuration."""

    value: Value
    sources: tuple[str, ...]
    """Names of the options that it comes from; none for what holds for every run of the other framework."""
    comment: str = ""


@dataclass(slots=True)
class Outcome:
    """Options that the rules of a table have set, and notes on those of the other framework."""

    source: SourceOptions
    command: str = "train"
    """Name of the command that takes the result, as in ``rlhf NAME``."""
    settings: dict[str, OptionSetting] = field(default_factory=dict)
    """By path."""
    files: dict[str, str] = field(default_factory=dict)
    """Text of each file that the configuration needs beside it, by the file's path."""
    notes: dict[str, list[tuple[Status, str]]] = field(default_factory=dict)
    """Notes on an option, by its name."""
    others: list[ReportRow] = field(default_factory=list)
    """Rows for what is in the input besides options, such as a launcher."""
    warnings: list[str] = field(default_factory=list)
    """Facts about the whole run."""

    def set(self, path: str, value: Value, *sources: str, comment: str = "") -> None:
        """Set an option of the configuration. Where two rules set the same, the later one wins."""
        self.settings[path] = OptionSetting(value, sources, comment)

    def copy(self, path: str, name: str, *others: str, comment: str = "") -> None:
        """Set an option of the configuration to the value of an option of the other framework.

        Args:
            others: further options of the other framework that it comes from.
        """
        self.set(path, self.source.value(name), name, *others, comment=comment)

    def without_shapers(self) -> None:
        """Take out the penalty of length where the estimator is refused with reward shapers, and note it as missing."""
        estimator = self.settings["algo.advantage.estimator"].value
        if estimator not in _WITHOUT_SHAPERS:
            return
        paths = [path for path in self.settings if path.startswith(_SHAPING)]
        sources = {name for path in paths for name in self.settings.pop(path).sources}
        self.missing(
            sorted(sources),
            f"{estimator} does not read what shapers change, so the penalty of length is left out: give it as a reward "
            "of its own, or choose another estimator",
        )

    def nothing(self, names: str | Iterable[str], why: str) -> None:
        """Note that an option, or each of several, needs no counterpart."""
        self._note(names, Status.NOTHING, why)

    def differs(self, names: str | Iterable[str], how: str) -> None:
        """Note that an option's counterpart differs, or that of each of several."""
        self._note(names, Status.DIFFERS, how)

    def missing(self, names: str | Iterable[str], why: str) -> None:
        """Note that an option, or each of several, has no counterpart."""
        self._note(names, Status.MISSING, why)

    def _note(self, names: str | Iterable[str], status: Status, text: str) -> None:
        for name in [names] if isinstance(names, str) else names:
            self.notes.setdefault(name, []).append((status, text))

    def apply_plain_entries(self) -> None:
        """Do what the entries of the table say by themselves: those with a counterpart, and those without one."""
        for name, entry in self.source.entries.items():
            fate, value = entry.fate, self.source.value(name)
            if isinstance(fate, To) and (self.source.given(name) or not fate.if_given):
                if value is not None:
                    self.set(fate.option, fate.convert(value), name)
                if fate.differs and self.source.given(name):
                    self.differs(name, fate.differs)
            elif isinstance(fate, Nothing) and self.source.given(name):
                self.nothing(name, fate.why)
            elif isinstance(fate, Missing) and self.source.given(name):
                if value in fate.off:
                    self.nothing(name, "it is off, as here")
                else:
                    self.missing(name, fate.why)

    def note_unused(self) -> None:
        """Note that options which rules read together, and of which nothing was said, change nothing."""
        used = {name for setting in self.settings.values() for name in setting.sources}
        for name, entry in self.source.entries.items():
            if isinstance(entry.fate, Rule) and name not in used and name not in self.notes:
                self.nothing(name, "it changes nothing with the other keys")

    def rows(self) -> Iterator[ReportRow]:
        """Yield a row for everything that was written in the input, in order."""
        yield from self.others
        for written in self.source.written:
            if written.problem:
                yield ReportRow(written.text, Status.UNKNOWN, written.problem)
            else:
                yield self._row(written)

    def default_rows(self) -> Iterator[ReportRow]:
        """Yield a row for each default of the other framework that has no counterpart of the same meaning."""
        for name, notes in self.notes.items():
            status, text = max(notes)
            if not self.source.given(name) and status > Status.MAPPED:
                value = self.source.value(name)
                yield ReportRow(f"{self.source.spelled(name)} {value}", status, text)

    def _row(self, written: Written) -> ReportRow:
        found = [self._said_of(name) for name in written.names]
        texts = dict.fromkeys(text for _, text in found if text)
        return ReportRow(written.text, max(status for status, _ in found), "; ".join(texts))

    def _said_of(self, name: str) -> tuple[Status, str]:
        set_here = [
            f"{path} = {shown(setting.value)}"
            for path, setting in self.settings.items()
            if name in setting.sources
        ]
        notes = self.notes.get(name, [])
        said = [note for note in notes if note[0] > Status.NOTHING]
        if set_here or said:
            # A rule may say that nothing is to be set before another one sets something.
            notes = said
        assert set_here or notes, f"no rule says what becomes of {name}"
        status = max([Status.MAPPED] * bool(set_here) + [status for status, _ in notes])
        return status, "; ".join([*set_here, *(text for _, text in notes)])


def shown(value: Value) -> str:
    """Return a value as TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(shown(entry) for entry in value)}]"
    if isinstance(value, str):
        return quoted(value)
    return repr(value)


def quoted(text: str) -> str:
    """Return a text as a basic string of TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    special = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return (
        '"'
        + "".join(
            special.get(letter, letter if letter.isprintable() else f"\\U{ord(letter):08x}")
            for letter in escaped
        )
        + '"'
    )


def nearest(name: str, names: Iterator[str]) -> str:
    """Return the known name that is most like ``name``, as a remark; empty if none is."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f" Did you mean {near[0]}?" if near else ""


def as_default(setting: OptionSetting, framework: str) -> OptionSetting:
    """Return a setting whose comment says that it is the framework's default."""
    said = f"{framework}'s default"
    return replace(setting, comment=f"{said}; {setting.comment}" if setting.comment else said)

"""Text of a migration: the configuration as TOML with comments, and the report of every option."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .table.outcome import OptionSetting, Outcome, ReportRow, Status, shown

WIDTH = 120

_ORDER = (
    "", "model", "data", "reward", "runtime", "engine", "backend", "rollout", "algo.advantage", "algo.loss",
    "algo.correction", "algo.kl", "algo", "ranking", "preference", "actor", "critic", "ref", "train", "eval",
    "checkpoint", "log", "resume",
)  # fmt: skip
"""Sections as our examples have them."""

_TITLES = {
    Status.MISSING: "No equivalent",
    Status.UNKNOWN: "Not understood",
    Status.DIFFERS: "Mapped, with a difference",
    Status.MAPPED: "Mapped",
    Status.NOTHING: "Nothing to set",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationReport:
    """Everything that is said of a migration besides its configuration."""

    origin: str
    """The input, in words."""
    command: str
    """Name of the command that takes the configuration."""
    rows: tuple[ReportRow, ...]
    """A row for everything that was written in the input."""
    defaults: tuple[ReportRow, ...]
    """A row for each default of the other framework that has no counterpart of the same meaning."""
    warnings: tuple[str, ...]
    """Facts about the whole run."""
    refusal: str = ""
    """Why the command would refuse the configuration; empty if it would not."""

    @property
    def is_complete(self) -> bool:
        """True if everything in the input has a counterpart or needs none."""
        return not any(row.status >= Status.MISSING for row in self.rows)

    def counts(self) -> str:
        """Return how many options became what, as one line."""
        parts = ((status, sum(row.status is status for row in self.rows)) for status in _TITLES)
        return ", ".join(
            f"{_TITLES[status].lower()}: {number}" for status, number in parts if number
        )

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        yield f"{self.origin}."
        yield f"{len(self.rows)} options; {self.counts()}."
        for warning in self.warnings:
            yield from _wrapped(f"! {warning}", "  ")
        if self.refusal:
            text = f"! rlhf {self.command} refuses this configuration: {self.refusal}"
            yield from _wrapped(text, "  ")
        for status, title in _TITLES.items():
            yield from _block(title, [row for row in self.rows if row.status is status])
        yield from _block("Defaults that differ", self.defaults)


def report_of(outcome: Outcome, origin: str, refusal: str = "") -> MigrationReport:
    """Return the report of an outcome.

    Args:
        origin: the input, in words.
        refusal: why the command would refuse the configuration.
    """
    return MigrationReport(
        origin=origin,
        command=outcome.command,
        rows=tuple(outcome.rows()),
        defaults=tuple(outcome.default_rows()),
        warnings=tuple(outcome.warnings),
        refusal=refusal,
    )


def _block(title: str, rows: Sequence[ReportRow]) -> Iterator[str]:
    if rows:
        yield ""
        yield f"{title}:"
    for row in rows:
        yield from _wrapped(f"  {row.what} -> {row.text}", "      ")


def _wrapped(text: str, indent: str) -> list[str]:
    wide = WIDTH - 2
    return textwrap.wrap(
        text, wide, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def toml(settings: Mapping[str, OptionSetting], report: MigrationReport, head: str) -> str:
    """Return the configuration with comments, and the report as comments at its end."""
    lines = [f"# {line}" for line in _wrapped(head, "")]
    for section in sorted({_section(path) for path in settings}, key=_rank):
        lines.append("")
        if section:
            lines.append(f"[{section}]")
        for path, setting in settings.items():
            if _section(path) == section:
                lines += _line(path, setting)
    lines += ["", "", *(f"# {line}".rstrip() for line in report.lines())]
    return "\n".join(lines) + "\n"


def _section(path: str) -> str:
    return path.rpartition(".")[0]


def _rank(section: str) -> tuple[int, str]:
    """Return the place of a section: that of the longest listed section that it is in."""
    found = [
        name for name in _ORDER if section == name or (name and section.startswith(f"{name}."))
    ]
    place = _ORDER.index(max(found, key=len)) if found else len(_ORDER)
    return place, section


def _line(path: str, setting: OptionSetting) -> list[str]:
    line = f"{path.rpartition('.')[2]} = {shown(setting.value)}"
    if not setting.comment:
        return [line]
    beside = f"{line}  # {setting.comment}"
    if len(beside) <= WIDTH:
        return [beside]
    return [*(f"# {part}" for part in _wrapped(setting.comment, "")), line]

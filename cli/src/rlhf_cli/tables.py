"""Tables in the forms that other tools read: text for a terminal, Markdown, CSV and JSON.

This module is public to plugins (``docs/plugins.md``) and imports no torch.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

HELP = (
    "form of the table: text for a terminal, markdown, or csv and json, which have every digit of a number and a "
    "column for each"
)
"""Help of an option that chooses a form."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_MARKUP = re.compile(r"[\\`*{}\[\]<>#|~$&!]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")


class Form(StrEnum):
    """Form in which a table is written."""

    TEXT = "text"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


Value = str | int | float | None
"""Value in one column of CSV; None: nothing is known."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Cell of several values, such as an estimate and its interval: one text, and a column each for programs."""

    text: str
    values: tuple[Value, ...]
    """As many as the column has parts."""


Cell = Value | Parts


@dataclass(frozen=True, slots=True)
class Column:
    """Head of a column."""

    name: str
    key: str = ""
    """Name for programs; empty: ``name``."""
    parts: tuple[str, ...] = ("",)
    """Words behind the key in the name of each value, as in ``reward``, ``reward_low``; of cells that are ``Parts``."""
    right: bool = False
    """Whether text is at the right edge."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the values for programs."""
        key = self.key or self.name
        return tuple(f"{key}_{part}" if part else key for part in self.parts)


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows, each row with a cell for every column."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]

    def written(self, form: Form) -> str:
        """Return the table in a form, without a newline at its end.

        Text has columns below each other, and numbers of four digits, as Markdown has. In text and Markdown a
        character that would end a line or move a cursor is written as its escape, and in Markdown nothing in a cell
        is markup. CSV and JSON have numbers with every digit; one that is not finite is ``nan`` or ``inf`` in CSV and
        null in JSON. JSON is a list of objects.
        """
        if form is Form.TEXT:
            return "\n".join(self.lines())
        if form is Form.MARKDOWN:
            return self._markdown()
        if form is Form.CSV:
            return self._csv()
        return json.dumps(self.objects(), indent=1)

    def lines(self) -> list[str]:
        """Return the lines of the text."""
        rows = list(self._texts())
        widths = [max(len(row[at]) for row in rows) for at in range(len(self.columns))]
        return [
            "  ".join(
                text.rjust(width) if column.right else text.ljust(width)
                for text, width, column in zip(row, widths, self.columns, strict=True)
            ).rstrip()
            for row in rows
        ]

    def objects(self) -> list[dict[str, Value]]:
        """Return an object for each row: values by the names for programs, None for a number that is not finite."""
        return [
            {key: _finite(value) for key, value in zip(self._keys(), values, strict=True)}
            for values in self._values()
        ]

    def _markdown(self) -> str:
        head, *rows = [[_unmarked(text) for text in row] for row in self._texts()]
        rule = ["---:" if column.right else "---" for column in self.columns]
        return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])

    def _csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self._keys())
        writer.writerows([_plain(value) for value in values] for values in self._values())
        return out.getvalue().removesuffix("\n")

    def _keys(self) -> list[str]:
        return [key for column in self.columns for key in column.keys]

    def _texts(self) -> Iterator[list[str]]:
        yield [printable(column.name) for column in self.columns]
        for row in self.rows:
            yield [_shown(cell) for cell in row]

    def _values(self) -> Iterator[list[Value]]:
        for row in self.rows:
            values: list[Value] = []
            for column, cell in zip(self.columns, row, strict=True):
                if isinstance(cell, Parts):
                    values += cell.values
                elif cell is None:
                    values += [None] * len(column.parts)
                else:
                    values.append(cell)
            yield values


def printable(text: str) -> str:
    """Return text on one line, with the characters escaped that would change the state of a terminal."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def print_table(table: Table, form: Form) -> None:
    """Print a table in a form; what the output's encoding lacks is escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    print(table.written(form).encode(encoding, "backslashreplace").decode(encoding))


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, Parts):
        return printable(cell.text)
    return f"{cell:.4g}" if isinstance(cell, float) else printable(str(cell))


def _unmarked(text: str) -> str:
    return _MARKUP.sub(lambda match: f"\\{match[0]}", text)


def _plain(value: Value) -> str:
    if value is None:
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)


def _finite(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""A source of rows: reads them one at a time, and knows for each one where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What stands in for a row that could not be read."""

    reason: str


class Source(Protocol):
    """Rows in a fixed order, by index. Reading a row again gives the same values."""

    name: str
    """Short name, by which results are grouped."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> Row:
        """Return a readable row by its original column names, as plain Python values."""
        ...

    def scan(self, columns: Sequence[str] | None = None) -> Iterator[Row | Unreadable]:
        """Yield all rows in order. With ``columns`` the others may be left out."""
        ...

    def where(self, index: int) -> str:
        """Place of a row for messages: ``file:line`` or ``set:row``."""
        ...

"""Data sources: rows of training data from anywhere, also without an end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol


class DataSource(Protocol):
    """Rows in an order of their own, by number from 0.

    A run draws them in this order, and begins again from row 0 where they end. A resumed run asks for the rows from
    where it was, and for older ones whose samples were under way; so a row must be the same at every reading. The run
    compares, and ends with the row's place if it is not.
    """

    def rows(self, start: int) -> Iterator[Mapping[str, Any]]:
        """Yield the rows from number ``start`` on, each a new object, until there are no more, or none yet.

        Values are JSON types, or whatever rewards and environments expect. The driver waits for each row, and so does
        the run where it is needed.

        Raises:
            DataError: a row cannot be read; the message has its place.
        """

    def where(self, number: int) -> str:
        """Return the place of a row for messages, such as ``rows.jsonl:row 17``."""

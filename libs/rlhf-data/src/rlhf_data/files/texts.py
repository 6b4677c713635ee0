"""Plain text files: a file is a document, and a row; a long one is several rows, cut between lines."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlhf_core.errors import DataError

from ..source import AS_UTF8, MAX_CHARACTERS, Row, Unreadable, row_error

TEXT = "text"
"""The column of the rows."""
_BOM = b"\xef\xbb\xbf"


class TextFile:
    """Source of a file with plain text, UTF-8.

    Args:
        path: the file, for messages.
        content: where its content is, if that is elsewhere.
        row_bytes: largest size of a row, where no line is longer.
    """

    def __init__(
        self, path: Path, name: str, content: Path | None = None, *, row_bytes: int = MAX_CHARACTERS
    ) -> None:
        self.name = name
        self._path = path
        self._content = content or path
        self._starts = array("q", [0])
        self._line_numbers = array("q", [1])
        position = 0
        try:
            with self._content.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if (
                        position > self._starts[-1]
                        and position + len(line) - self._starts[-1] > row_bytes
                    ):
                        self._starts.append(position)
                        self._line_numbers.append(number)
                    position += len(line)
        except OSError as error:
            raise DataError(
                f"{path}: cannot read it: {error.strerror}", code="data/unreadable-file"
            ) from error
        self._starts.append(position)

    def __len__(self) -> int:
        return len(self._line_numbers)

    def row(self, index: int) -> Row:
        row = self._read(index)
        if isinstance(row, Unreadable):
            raise row_error(self.where(index), row)
        return row

    def scan(self, columns: Sequence[str] | None = None) -> Iterator[Row | Unreadable]:
        return map(self._read, range(len(self)))

    def where(self, index: int) -> str:
        return f"{self._path}:{self._line_numbers[index]}"

    def _read(self, index: int) -> Row | Unreadable:
        start, end = self._starts[index : index + 2]
        with self._content.open("rb") as file:
            file.seek(start)
            found = file.read(end - start)
        try:
            return {TEXT: found.removeprefix(_BOM).decode("utf-8")}
        except UnicodeDecodeError as error:
            return Unreadable(
                f"expected UTF-8 text ({error.reason} at byte {start + error.start + 1}). {AS_UTF8}"
            )

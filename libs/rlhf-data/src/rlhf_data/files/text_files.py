"""Sources that are JSON Lines and JSON files: values stay as they were written, and each row has its file and line.

``datasets`` is not used, because it would guess types over the whole file (dates from text, one type per column) and
copy the file into its cache.
"""

from __future__ import annotations

import json
import os
import weakref
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError
from rlhf_core.outside.json_reader import MAX_DEPTH, require_shallow

from ..source import AS_UTF8, Row, Source, Unreadable, code_of, row_error
from .layouts import refuse_other_layout

_BOM = b"\xef\xbb\xbf"
_REPEATED = "repeated key"


class _RepeatedKey(ValueError):
    """An object has a key twice. Python's reader keeps the last value, so the first would be lost in silence."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise _RepeatedKey(f"the key {double!r} is there twice; leave one of them out")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


class JsonLines:
    """Source of a file with one JSON object per line; blank lines are skipped.

    The source holds 12 bytes per row: the start of the line in the file, and the line's number. The file must not
    change while it is open.

    Args:
        path: the file, for messages.
        content: where its content is, if that is elsewhere.
    """

    def __init__(self, path: Path, name: str, content: Path | None = None) -> None:
        self.name = name
        self._path = path
        self._content = content or path
        self._starts = array("q")
        self._line_numbers = array("i")
        try:
            self._file = os.open(self._content, os.O_RDONLY)
        except OSError as error:
            raise DataError(
                f"{path}: cannot read it: {error.strerror}", code="data/unreadable-file"
            ) from error
        weakref.finalize(self, os.close, self._file)
        self._stamp = self._read_stamp()
        self._index_lines()
        if not self._line_numbers:
            raise DataError(
                f"{path}: the file has only blank lines; expected at least one row",
                code="data/no-rows",
            )
        refuse_other_layout(path, self._content, len(self))

    def __len__(self) -> int:
        return len(self._line_numbers)

    def row(self, index: int) -> Row:
        start, end = self._starts[index], self._starts[index + 1]
        if self._read_stamp() != self._stamp:
            raise DataError(
                f"{self._path}: the file was changed while the run was reading it",
                code="data/changed-file",
            )
        row = parse_row(os.pread(self._file, end - start, start))
        if isinstance(row, Unreadable):
            raise row_error(self.where(index), row)
        return row

    def scan(self, columns: Sequence[str] | None = None) -> Iterator[Row | Unreadable]:
        with open(self._content, "rb") as file:
            for line in _without_bom(file):
                if line.strip():
                    yield parse_row(line)

    def where(self, index: int) -> str:
        """Return ``file:line``, with lines counted from 1."""
        return f"{self._path}:{self._line_numbers[index]}"

    def _index_lines(self) -> None:
        """Record the start and the number of each line that is not blank, and at last the end of the file.

        A row's bytes end where the next row starts, so blank lines between belong to the row before, as JSON allows.
        """
        position = len(_BOM) if os.pread(self._file, len(_BOM), 0) == _BOM else 0
        with open(self._content, "rb") as file:
            for number, line in enumerate(_without_bom(file), start=1):
                if line.strip():
                    self._starts.append(position)
                    self._line_numbers.append(number)
                position += len(line)
        self._starts.append(position)

    def _read_stamp(self) -> tuple[int, int]:
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns


class JsonArray:
    """Source of a JSON file with a list of objects, which is held in memory."""

    def __init__(
        self, path: Path, name: str, rows: list[Row | Unreadable], line_numbers: array[int]
    ) -> None:
        self.name = name
        self._path = path
        self._rows = rows
        self._line_numbers = line_numbers

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Row:
        row = self._rows[index]
        if isinstance(row, Unreadable):
            raise row_error(self.where(index), row)
        return row

    def scan(self, columns: Sequence[str] | None = None) -> Iterator[Row | Unreadable]:
        yield from self._rows

    def where(self, index: int) -> str:
        return f"{self._path}:{self._line_numbers[index]}"


def open_json(path: Path, name: str, content: Path | None = None) -> Source:
    """Open a ``.json`` file: a list of objects, or one object a line as in ``.jsonl``.

    Raises:
        DataError: the file has neither form, is not UTF-8, or its list is broken; the message has the line.
    """
    try:
        text = (content or path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(
            f"{path}: cannot read it: {error.strerror}", code="data/unreadable-file"
        ) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}:{line}: expected UTF-8 text ({error.reason}). {AS_UTF8}", code="data/not-utf8"
        ) from error
    if not text.lstrip().startswith("["):
        return JsonLines(path, name, content)
    rows: list[Row | Unreadable] = []
    line_numbers = array("i")
    for value, line in _array_entries(text, path):
        rows.append(_as_row(value))
        line_numbers.append(line)
    if not rows:
        raise DataError(
            f"{path}: the list is empty; expected at least one row", code="data/no-rows"
        )
    return JsonArray(path, name, rows, line_numbers)


def parse_row(line: bytes) -> Row | Unreadable:
    """Return the JSON object of a line, or the reason why the line has none."""
    try:
        text = line.decode("utf-8").rstrip()
        value = _DECODER.decode(text)
        require_shallow(value, text)
        return _as_row(value)
    except UnicodeDecodeError as error:
        return Unreadable(
            f"expected UTF-8 text ({error.reason} at byte {error.start + 1}). {AS_UTF8}"
        )
    except json.JSONDecodeError as error:
        return Unreadable(f"broken JSON: {_nearly(text) or f'{error.msg} at column {error.colno}'}")
    except _RepeatedKey as error:
        return Unreadable(str(error), _REPEATED)
    except RecursionError:
        return Unreadable(f"unusable JSON: nested more than {MAX_DEPTH} lists and objects deep")
    except (
        ValueError
    ) as error:  # nested too deeply, or a number has more digits than Python converts
        return Unreadable(f"unusable JSON: {error}")


def _nearly(text: str) -> str | None:
    """Return what is wrong with a line that is nearly JSON, with the fix; None: nobody knows."""
    if text.startswith(("{'", "[{'")):
        return "the line is an object as Python prints it; write it with json.dumps"
    if not text.endswith("},") or not isinstance(parse_row(text[:-1].encode()), dict):
        return None
    return (
        "a comma stands behind the object; leave it out, or write all rows as a list into a file "
        "that ends with .json"
    )


def _as_row(value: object) -> Row | Unreadable:
    if isinstance(value, dict):
        return value
    return Unreadable(f"expected a JSON object per row, got {type(value).__name__}")


def _array_entries(text: str, path: Path) -> Iterator[tuple[object, int]]:
    """Yield the entries of a JSON list with the line that each starts on."""
    position = _skip_blank(text, text.index("[") + 1)
    line = 1 + text.count("\n", 0, position)
    while not text.startswith("]", position):
        try:
            value, end = _DECODER.raw_decode(text, position)
            require_shallow(value, text[position:end])
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}:{error.lineno}: broken JSON: {error.msg} at column {error.colno}",
                code="data/broken-json",
            ) from error
        except _RepeatedKey as error:
            raise DataError(f"{path}:{line}: {error}", code=code_of(_REPEATED)) from error
        except (RecursionError, ValueError) as error:
            raise DataError(
                f"{path}:{line}: unusable JSON: {error}", code="data/malformed-file"
            ) from error
        yield value, line
        following = _skip_blank(text, end)
        line += text.count("\n", position, following)
        if text.startswith(",", following):
            position = _skip_blank(text, following + 1)
            line += text.count("\n", following, position)
        elif text.startswith("]", following):
            position = following
        else:
            raise DataError(
                f"{path}:{line}: broken JSON: expected ',' or ']' after an entry",
                code="data/broken-json",
            )
    if text[position + 1 :].strip():
        raise DataError(
            f"{path}:{line}: expected nothing after the list's end", code="data/after-the-list"
        )


def _skip_blank(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _without_bom(lines: Iterator[bytes]) -> Iterator[bytes]:
    first = next(lines, b"")
    yield first.removeprefix(_BOM)
    yield from lines

"""Rows that a Python program gives in the place of a file: copied once, and written into the run folder.

The file is named after its content. So a run that is resumed with other rows is refused as one with another file is,
and ``config.toml`` repeats the run from the command line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core import DataError
from rlhf_core.storage.writing import write_text_atomically

FOLDER = "data"
"""Folder of the run folder that holds the rows."""


def are_rows(value: Any) -> bool:
    """True for a list whose first entry is a mapping, and for a ``datasets.Dataset`` or what looks like one."""
    if isinstance(value, list | tuple):
        return bool(value) and isinstance(value[0], Mapping)
    return hasattr(value, "column_names") and hasattr(value, "__getitem__")


class GivenRows:
    """One set of rows, as lines of JSON.

    Args:
        rows: mappings of column to value, copied here; later changes have no effect.
        name: name of the set, by which results are grouped.
        label: the option that holds the rows, for messages.

    Raises:
        DataError: there are no rows, they have no length or change meanwhile, or one is no mapping or holds what JSON
            cannot.
    """

    def __init__(self, rows: Any, name: str, label: str) -> None:
        self.name = name
        self._label = label
        self._text = self._lines(rows)
        self._path: Path | None = None

    @property
    def entry(self) -> str:
        """Name of the file, once the rows have a place."""
        assert self._path is not None
        return str(self._path)

    def place(self, output: Path) -> None:
        """Name the file below a run folder; nothing is written yet."""
        digest = hashlib.sha256(self._text.encode()).hexdigest()[:16]
        self._path = output / FOLDER / digest / f"{self.name}.jsonl"

    def save(self) -> None:
        """Write the file, unless it is there."""
        path = Path(self.entry)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomically(path, self._text)

    def _lines(self, rows: Any) -> str:
        from rlhf_data import rows_as_written

        try:
            count = len(rows)
        except TypeError:
            raise DataError(
                f"{self._label}: expected rows whose number is known; got a stream ({type(rows).__name__}). Give a "
                "list of its first rows.",
                code="data/stream-of-rows",
            ) from None
        if not count:
            raise DataError(
                f"{self._label}: expected at least one row, got none", code="data/no-rows"
            )
        lines = [self._line(index, row) for index, row in enumerate(rows_as_written(rows))]
        if not len(lines) == count == len(rows):
            raise DataError(
                f"{self._label}: the rows changed while they were read: {count} at first, then {len(lines)}",
                code="data/changing-rows",
            )
        return "".join(f"{line}\n" for line in lines)

    def _line(self, index: int, row: Any) -> str:
        if not isinstance(row, Mapping):
            raise DataError(
                f"{self._label}[{index}]: expected a row as a mapping of column to value, got {row!r:.60} "
                f"({type(row).__name__})",
                code="data/row-no-mapping",
            )
        try:
            columns = dict(row)
        except RuntimeError as error:
            raise DataError(
                f"{self._label}[{index}]: the row changed while it was read: {error}",
                code="data/changing-rows",
            ) from error
        for column in columns:
            if not isinstance(column, str):
                raise DataError(
                    f"{self._label}[{index}]: expected text as the name of a column, got {column!r}",
                    code="data/column-name-no-text",
                )
        try:
            return json.dumps(columns, ensure_ascii=True, allow_nan=False, default=_as_json)
        except (TypeError, ValueError, RecursionError, RuntimeError) as error:
            is_not_finite = "not JSON compliant" in str(error)
            problem = "it has NaN or an infinite number" if is_not_finite else error
            fix = (
                "Write None for what is missing; of a data frame: frame.astype(object).where(frame.notna(), None)."
                if is_not_finite
                else "Save such a set with datasets' save_to_disk and give the folder."
            )
            raise DataError(
                f"{self._label}[{index}]: its column {self._culprit(columns)!r} cannot be written as JSON: {problem}. "
                f"{fix}",
                code="data/column-not-json",
            ) from error

    def _culprit(self, columns: dict[str, Any]) -> str:
        for column, value in columns.items():
            try:
                json.dumps(value, allow_nan=False, default=_as_json)
            except (TypeError, ValueError, RecursionError, RuntimeError):
                return column
        return next(iter(columns), "")


def _as_json(value: Any) -> Any:
    """Return arrays and items of numpy and torch as lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"got {type(value).__name__}")

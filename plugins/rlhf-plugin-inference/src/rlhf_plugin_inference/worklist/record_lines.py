"""The file of results: one JSON line for each. A killed process leaves whole lines and perhaps half of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from rlhf_core import ResumeError
from rlhf_core.outside.json_reader import parse_form

RecordT = TypeVar("RecordT")


def read_records(path: Path, form: type[RecordT]) -> Iterator[RecordT]:
    """Yield the records of a file, which may be missing.

    Raises:
        ResumeError: a line cannot be read.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield record_of(path, number, line, form)


def record_of(path: Path, number: int, line: bytes, form: type[RecordT]) -> RecordT:
    """Return the record of a line.

    Args:
        number: number of the line, from 1 on.

    Raises:
        ResumeError: the line is no JSON, or no such record.
    """
    try:
        return parse_form(line, form)
    except ValueError as error:
        raise ResumeError(
            f"{path}:{number}: {error}. Remove this line and those after it, or start over with --resume restart, "
            "which keeps the file.",
            code="resume/damaged",
        ) from error


def cut_lines(path: Path, count: int | None = None) -> None:
    """Cut a file, which may be missing, behind its first ``count`` lines; None: behind its last whole line."""
    if not path.exists():
        return
    size = 0
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if number == count or not line.endswith(b"\n"):
                break
            size += len(line)
    os.truncate(path, size)

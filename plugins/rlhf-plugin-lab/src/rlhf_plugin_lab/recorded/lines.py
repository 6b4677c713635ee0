"""Lines of a record, each an object: read one at a time, with limits, and not ended by a bad one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.outside.json_reader import BrokenJson, parse_object

from .problems import Problems

MAX_LINE_BYTES = 64 << 20
"""Longest line that is read; of a longer one the page says that it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One record of a file."""

    start: int
    """Number of bytes of the file before it."""
    value: dict[str, Any]


def lines_of(path: Path, problems: Problems) -> Iterator[Line]:
    """Yield the records of a file in order. What is no record is noted and left out.

    A last line without an end is left out too: whoever writes it has not finished, or was killed.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        problems.note(f"{path.name} cannot be read", str(error.strerror))
        return
    with file:
        start, number = 0, 0
        while data := file.readline(MAX_LINE_BYTES):
            number += 1
            begun, start = start, start + len(data)
            if not data.endswith(b"\n"):
                if len(data) < MAX_LINE_BYTES:
                    problems.note(
                        f"the last line of {path.name} is not finished: the run is writing it, or was killed"
                    )
                    return
                start += _skip(file.readline)
                problems.note(f"lines of {path.name} are longer than {MAX_LINE_BYTES >> 20} MiB")
            elif data.strip():
                try:
                    value = parse_object(data)
                except (BrokenJson, RecursionError) as error:
                    problems.note(
                        f"lines of {path.name} that are no records are left out",
                        f"line {number}: {error}",
                    )
                else:
                    yield Line(start=begun, value=value)


def _skip(readline: Any) -> int:
    """Read to the end of a line, and return the number of bytes."""
    skipped = 0
    while data := readline(MAX_LINE_BYTES):
        skipped += len(data)
        if data.endswith(b"\n"):
            break
    return skipped


def step_of(value: dict[str, Any]) -> int | None:
    """Return the step of a record; None: it has none."""
    step = value.get("step")
    return step if type(step) is int and step >= 0 else None

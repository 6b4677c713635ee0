"""Data source that reads a JSON Lines file while another program appends to it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import Field

from rlhf_core import Component, Config, ConfigError, DataError
from rlhf_core.outside.json_reader import parse_json, parse_object

POLL_S = 0.1


class JsonlStreamConfig(Config):
    path: str = Field(min_length=1, description="the file, with a JSON object on each line")
    wait_s: float = Field(
        0.0,
        ge=0.0,
        description="seconds to wait for another row at the end of the file; then the rows begin again",
    )

    def check_outside(self) -> None:
        if not Path(self.path).is_file():
            raise ConfigError(
                f"--data.jsonl_stream.path {self.path}: expected a file; there is none. Begin it with a row.",
                code="data/file-not-found",
            )


class JsonlStream:
    """Data source of a file that grows at its end. Blank lines are none of its rows.

    A line without a newline is a row once it is a whole JSON object: no part of an object is one.
    """

    def __init__(self, config: JsonlStreamConfig) -> None:
        self.config = config

    def rows(self, start: int) -> Iterator[Mapping[str, Any]]:
        """Yield the rows from ``start`` on.

        Raises:
            DataError: the file is not there, or a line is no JSON object.
        """
        try:
            with open(self.config.path, "rb") as file:
                number = 0
                while line := self._next_line(file):
                    if number >= start:
                        yield self._row(line, number)
                    number += 1
        except OSError as error:
            raise DataError(
                f"{self.config.path}: cannot read it: {error.strerror}", code="data/unreadable-file"
            ) from error

    def where(self, number: int) -> str:
        return f"{self.config.path}:row {number + 1}"

    def _next_line(self, file: BinaryIO) -> bytes:
        """Return the next line that is not blank; empty where the file ends, and nothing came while it waited."""
        deadline = time.monotonic() + self.config.wait_s
        while True:
            begin = file.tell()
            line = file.readline()
            if line.endswith(b"\n") or _is_whole(line):
                if line.strip():
                    return line
            elif time.monotonic() >= deadline:
                if line.strip():
                    raise DataError(
                        f"{self.config.path}: the last line is no whole JSON object: {line[:60]!r}. Write rows with a "
                        "newline at their end, or wait for the rest with --data.jsonl_stream.wait_s 60.",
                        code="data/half-a-line",
                    )
                return b""
            else:
                file.seek(begin)
                time.sleep(POLL_S)

    def _row(self, line: bytes, number: int) -> Mapping[str, Any]:
        try:
            return parse_object(line)
        except ValueError as error:
            raise DataError(
                f"{self.where(number)}: expected a JSON object; {error}", code="data/not-an-object"
            ) from error


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(parse_json(line), dict)
    except ValueError:
        return False


COMPONENT = Component(
    name="jsonl_stream",
    factory=JsonlStream,
    config=JsonlStreamConfig,
    summary="a JSON Lines file, also while it grows",
)

"""Lines of a run's record, each an object with the number of a step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhf_core.errors import ConfigError
from rlhf_core.outside.json_reader import parse_object

METRICS = "metrics.jsonl"

Record = dict[str, Any]


def records_of(path: Path) -> Iterator[Record]:
    """Yield the records of a file, up to a last line that has no end.

    Raises:
        ConfigError: a line is no JSON object with a step.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            # A run that is going on, or that was killed, may have half of its last line in the file.
            if not line.endswith(b"\n"):
                return
            try:
                record = parse_object(line)
            except ValueError as error:
                raise ConfigError(
                    f"{path}:{number}: expected a JSON object: {error}", code="run/damaged-record"
                ) from error
            if not isinstance(record.get("step"), int):
                raise ConfigError(
                    f"{path}:{number}: expected an object with a step", code="run/damaged-record"
                )
            yield record

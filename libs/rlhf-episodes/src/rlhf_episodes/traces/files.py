"""Files of traces, a line of JSON for each episode."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from rlhf_core import DataError
from rlhf_core.outside.json_reader import BrokenJson, parse_json
from rlhf_core.storage import written_whole

from .training_trace import TrainingTrace, parse_trace


def write_traces(path: Path, traces: Iterable[TrainingTrace]) -> None:
    """Write traces into a new file; one of that name is replaced when all are written.

    Raises:
        StorageError: the file could not be written.
    """
    with written_whole(path) as file:
        for trace in traces:
            text = json.dumps(trace.as_json(), allow_nan=False, separators=(",", ":"))
            file.write(f"{text}\n".encode())


def read_traces(path: Path) -> Iterator[TrainingTrace]:
    """Yield the traces of a file.

    Raises:
        DataError: a line is no trace of version 1; the message has its number.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield parse_trace(parse_json(line, finite=True))
            except (BrokenJson, DataError) as error:
                raise DataError(
                    f"{path}, line {number}: {error}", code="trace/malformed"
                ) from error

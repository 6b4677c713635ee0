"""The run's readable records: ``metrics.jsonl`` and ``samples.jsonl``, one JSON object per line.

Apart from ``time_s`` and ``timing``, a line is a function of configuration and seed: a run that was killed and
resumed leaves the same lines as one that was not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .atomic import write_text_atomically


class RecordFile:
    """An append-only JSON-lines file whose records carry a ``step``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record; it is complete in the file when this returns."""
        # allow_nan: a metric that became NaN is recorded as such rather than lost.
        self._file.write(json.dumps(record, ensure_ascii=True) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Make everything written so far durable."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def cut_after(path: Path, step: int) -> None:
    """Remove the records of steps after ``step``, and a last line that a kill cut off."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n") and json.loads(line)["step"] <= step:
            kept.append(line)
    write_text_atomically(path, "".join(kept))

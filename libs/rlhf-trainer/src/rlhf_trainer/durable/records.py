"""The run's readable records: ``metrics.jsonl``, ``samples.jsonl``, ``eval_samples.jsonl``: one JSON object per line.

Apart from ``time_s`` and ``timing``, a line is a function of configuration and seed: a run that was killed and
resumed leaves the same lines as one that was not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .appending import AppendedFile, Extent, RunningDigest


class RecordFile:
    """A JSON-lines file whose records carry a ``step``. Lines after ``begun`` are cut off when it is opened.

    Args:
        begun: digest of the lines up to the checkpoint that the run goes on from; None: the file begins anew.
    """

    def __init__(self, path: Path, begun: RunningDigest | None = None) -> None:
        if path.exists():
            os.truncate(path, begun.num_bytes if begun else 0)
        self._file = AppendedFile(path, begun)

    @property
    def extent(self) -> Extent:
        """The whole file as it is now."""
        return self._file.extent

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record; it is complete in the file when this returns."""
        # allow_nan: a metric that became NaN is recorded as such rather than lost.
        self._file.write_line(json.dumps(record, ensure_ascii=True))

    def sync(self) -> None:
        """Make everything written so far durable."""
        self._file.sync()

    def close(self) -> None:
        self._file.close()

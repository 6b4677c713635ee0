"""Records of a run: text files that are only ever appended to, whose length and digest each checkpoint knows."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.errors import StorageError
from rlhf_core.storage.writing import writing

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The beginning of a file, by length and digest."""

    num_bytes: int
    sha256: str
    """SHA-256 of these bytes, in hexadecimal digits."""


class RunningDigest:
    """Length and SHA-256 of all bytes added so far."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._sha256 = hashlib.sha256()

    def add(self, data: bytes) -> None:
        self._sha256.update(data)
        self.num_bytes += len(data)

    def add_file(self, path: Path, *, up_to: int | None = None) -> None:
        """Add the file's bytes from ``num_bytes`` on, to byte ``up_to`` or to its end."""
        with path.open("rb") as file:
            file.seek(self.num_bytes)
            while up_to is None or self.num_bytes < up_to:
                size = CHUNK_BYTES if up_to is None else min(CHUNK_BYTES, up_to - self.num_bytes)
                if not (data := file.read(size)):
                    return
                self.add(data)

    def extent(self) -> Extent:
        return Extent(num_bytes=self.num_bytes, sha256=self._sha256.hexdigest())


class AppendedFile:
    """Appends lines to a file; each is complete in the file when ``write_line`` returns.

    Args:
        begun: digest of the file's beginning, if known; the rest of the file is read.
    """

    def __init__(self, path: Path, begun: RunningDigest | None = None) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)  # nothing may be left for close to write
        self._digest = begun or RunningDigest()
        self._digest.add_file(path)

    @property
    def extent(self) -> Extent:
        """The whole file as it is now."""
        return self._digest.extent()

    def write_line(self, text: str) -> None:
        """Append a line.

        Raises:
            StorageError: the line could not be written, as on a full disk; the file ends with the line before. Or the
                file is no longer at its path, where nobody would find the line.
        """
        there = os.path.exists(self.path)
        if not there or not os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno())):
            raise StorageError(
                f"{self.path} was removed, moved or replaced while a run writes it, so that its records would be lost "
                "from here on. Put it back and start the command again, which also says how to continue without it",
                code="run/record-gone",
            )
        data = text.encode() + b"\n"
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            with suppress(OSError):  # a device has no length; the error to report is the first one
                os.ftruncate(self._file.fileno(), self._digest.num_bytes)
            raise StorageError(f"{self.path} cannot be written to: {error.strerror}") from error
        self._digest.add(data)

    def sync(self) -> None:
        """Make everything written so far durable.

        Raises:
            StorageError: the disk did not take it.
        """
        with writing(str(self.path)):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class RecordFile(AppendedFile):
    """A JSON-lines file whose records carry a ``step``. Lines after ``begun`` are cut off when it is opened.

    Args:
        begun: digest of the lines up to the checkpoint that the run continues from; None: the file starts over.
    """

    def __init__(self, path: Path, begun: RunningDigest | None = None) -> None:
        if path.exists():
            os.truncate(path, begun.num_bytes if begun else 0)
        super().__init__(path, begun)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record; it is complete in the file when this returns."""
        # allow_nan: a metric that became NaN is recorded as such rather than lost.
        self.write_line(json.dumps(record, ensure_ascii=True))

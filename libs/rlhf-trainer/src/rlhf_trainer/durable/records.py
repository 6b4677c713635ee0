"""Records of a run: text files that are only ever appended to, whose length and digest each checkpoint knows.

The ledger among them has the fate of every group, one line per step and event:

    {"step": 3, "event": "trained", "version": 2, "groups": {"0.17": 8, "0.4": 8}}

Keys of ``groups`` are ``epoch.prompt``, values the number of episodes. The events of a group are ``planned``, then
``trained`` or ``dropped`` (with a reason). A line ``{"event": "resumed", "step": k, "num_bytes": n}`` voids all lines
after the file's first n bytes, its length at the checkpoint of step k, so that a killed run's unfinished work does not
count. At the end of each step the ledger balances: every group that was planned has been trained or dropped, or is in
flight.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.batch.task import Uid
from rlhf_core.errors import CheckpointError, StorageError
from rlhf_core.outside.json_reader import parse_object
from rlhf_core.storage.run_folder import RunFolder
from rlhf_core.storage.writing import writing

CHUNK_BYTES = 1 << 20

EVENTS = ("planned", "trained", "dropped")
"""The events of a group, as the fields of ``Balance``."""
RESUMED = "resumed"

Groups = Mapping[tuple[int, int], int]
"""(epoch, prompt) -> number of episodes."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRecords:
    """The records of a run folder, by file name."""

    whole: Mapping[str, RunningDigest]
    """Name of each undamaged record -> digest of its beginning, up to the checkpoint."""
    damaged: Mapping[str, str]
    """Name of each other record -> description of its damage."""


def check_records(
    folder: RunFolder, extents: Mapping[str, Extent], own: Sequence[str]
) -> CheckedRecords:
    """Compare the beginning of each record with its extent at the time of the checkpoint.

    Args:
        own: names of the records that this kind of run has beside its metrics and samples.
    """
    # A checkpoint of a version that did not have the record yet.
    nothing = RunningDigest().extent()
    whole: dict[str, RunningDigest] = {}
    damaged: dict[str, str] = {}
    for path in (folder.metrics, folder.samples, *(folder.root / name for name in own)):
        digest = RunningDigest()
        if problem := _problem(path, extents.get(path.name, nothing), digest):
            damaged[path.name] = problem
        else:
            whole[path.name] = digest
    return CheckedRecords(whole=whole, damaged=damaged)


def _problem(path: Path, expected: Extent, digest: RunningDigest) -> str:
    """Read the beginning of a file into ``digest`` and return a description of its damage, empty if there is none."""
    try:
        digest.add_file(path, up_to=expected.num_bytes)
    except FileNotFoundError:
        return "" if expected.num_bytes == 0 else "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if digest.num_bytes < expected.num_bytes:
        return f"has lost its end: {digest.num_bytes} of {expected.num_bytes} bytes are left"
    if digest.extent() != expected:
        return f"has changed within its first {expected.num_bytes} bytes"
    return ""


@dataclass(slots=True)
class Balance:
    """Number of episodes of each group by event, after replaying a ledger."""

    planned: Counter[str] = field(default_factory=Counter)
    trained: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)

    def unsettled(self) -> list[str]:
        """Return the groups that were planned but neither trained nor dropped, or were so more than once."""
        settled = self.trained + self.dropped
        return sorted(
            group for group in self.planned | settled if self.planned[group] != settled[group]
        )


class Ledger(AppendedFile):
    """Writer of a run's ledger. Opened for appending; nothing is ever rewritten.

    Args:
        begun: digest of the lines up to the checkpoint that the run continues from; None: no line belongs to one.
    """

    def __init__(self, path: Path, begun: RunningDigest | None = None) -> None:
        self._begun = begun.num_bytes if begun else 0
        super().__init__(path, begun)

    def resumed(self, step: int) -> None:
        """Void all lines that were written after the checkpoint of ``step``."""
        self.write_line("")  # a kill may have cut off the last line
        self._write({"event": RESUMED, "step": step, "num_bytes": self._begun})

    def planned(self, step: int, groups: Groups) -> None:
        self._group_event("planned", step, groups)

    def trained(self, step: int, groups: Groups, *, version: int) -> None:
        """Record groups that were trained on; ``version`` is the oldest version of weights that sampled them."""
        self._group_event("trained", step, groups, version=version)

    def dropped(self, step: int, groups: Groups, *, reason: str) -> None:
        self._group_event("dropped", step, groups, reason=reason)

    def _group_event(self, event: str, step: int, groups: Groups, **details: Any) -> None:
        if groups:
            counts = {
                f"{epoch}.{prompt}": count for (epoch, prompt), count in sorted(groups.items())
            }
            self._write({"step": step, "event": event, **details, "groups": counts})

    def _write(self, record: Mapping[str, Any]) -> None:
        self.write_line(json.dumps(record, separators=(",", ":")))


def groups_of(uids: Iterable[Uid]) -> dict[tuple[int, int], int]:
    """Return the number of episodes of each group."""
    episodes = {(uid.epoch, uid.prompt, uid.sample) for uid in uids}
    return dict(Counter((epoch, prompt) for epoch, prompt, _ in sorted(episodes)))


def replay(path: Path, *, num_bytes: int | None = None) -> Balance:
    """Read a ledger and return the balance of its lines, void ones excepted.

    A last line that a kill cut off is left out.

    Args:
        num_bytes: read only this many bytes from the file's start; None: all.

    Raises:
        CheckpointError: a line, other than a last one that was cut off, cannot be read.
    """
    content = path.read_bytes()[:num_bytes] if path.exists() else b""
    valid: list[tuple[int, dict[str, Any] | CheckpointError]] = []
    start = 0
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        try:
            if line.strip():
                record = _record(line)
                if record["event"] == RESUMED:
                    valid = [entry for entry in valid if entry[0] < record["num_bytes"]]
                else:
                    valid.append((start, record))
        except (ValueError, RecursionError) as error:
            if line.endswith(b"\n"):
                problem = CheckpointError(
                    f"{path}:{number}: not a ledger line: {error}", code="checkpoint/damaged-ledger"
                )
                valid.append((start, problem))  # unless a later line voids it
        start += len(line)
    balance = Balance()
    for _, entry in valid:
        if isinstance(entry, CheckpointError):
            raise entry
        getattr(balance, entry["event"]).update(entry["groups"])
    return balance


def _record(line: bytes) -> dict[str, Any]:
    """Return a line's record."""
    record = parse_object(line)
    if record.get("event") not in (*EVENTS, RESUMED):
        raise ValueError(f"expected an event, one of {', '.join((*EVENTS, RESUMED))}")
    if record["event"] == RESUMED:
        if not isinstance(record.get("num_bytes"), int):
            raise ValueError("a resumed line needs num_bytes")
    elif not (
        isinstance(groups := record.get("groups"), dict)
        and all(isinstance(count, int) for count in groups.values())
    ):
        raise ValueError("expected groups, each with its number of episodes")
    return record

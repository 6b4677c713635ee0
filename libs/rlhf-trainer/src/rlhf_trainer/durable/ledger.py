"""The ledger: the fate of every group, in an append-only file with one line per step and event.

    {"step": 3, "event": "trained", "version": 2, "groups": {"0.17": 8, "0.4": 8}}

Keys of ``groups`` are ``epoch.prompt``, values the number of episodes. The events of a group are ``planned``, then
``trained`` or ``dropped`` (with a reason). A line ``{"event": "resumed", "step": k, "num_bytes": n}`` voids all lines
after the file's first n bytes, its length at the checkpoint of step k, so that a killed run's unfinished work does not
count. At the end of each step the ledger balances: every group that was planned has been trained or dropped, or is in
flight.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.batch.task import Uid
from rlhf_core.errors import CheckpointError
from rlhf_core.outside.json_reader import parse_object

from .records import AppendedFile, RunningDigest

EVENTS = ("planned", "trained", "dropped")
"""The events of a group, as the fields of ``Balance``."""
RESUMED = "resumed"

Groups = Mapping[tuple[int, int], int]
"""(epoch, prompt) -> number of episodes."""


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

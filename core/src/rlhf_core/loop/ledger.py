"""The ledger: what happened to every group of samples, append-only, one line per step and event.

    {"step": 3, "event": "trained", "version": 2, "groups": {"0.17": 8, "0.4": 8}}

Keys of ``groups`` are ``epoch.prompt``, values the number of episodes. The events of a group are ``planned``, then
``trained`` or ``dropped`` (with a reason). A line ``{"event": "resumed", "step": k}`` voids what was written for
steps after k, so that a killed run's unfinished work does not count. At the end of each step the books balance:
whatever was planned has been trained or dropped.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..contracts.task import Uid
from ..errors import CheckpointError

Groups = Mapping[tuple[int, int], int]
"""(epoch, prompt) -> number of episodes."""


@dataclass(slots=True)
class Balance:
    """The state of all groups after replaying a ledger."""

    planned: Counter[str] = field(default_factory=Counter)
    trained: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)

    def unsettled(self) -> list[str]:
        """Groups that were planned but neither trained nor dropped, or settled more than once."""
        settled = self.trained + self.dropped
        return sorted(
            group for group in self.planned | settled if self.planned[group] != settled[group]
        )


class Ledger:
    """Writer of a run's ledger. Opened for appending; nothing is ever rewritten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", encoding="utf-8")

    def resumed(self, step: int) -> None:
        """Void everything that was written for later steps. Starts a line of its own: a kill may have cut one off."""
        self._file.write("\n")
        self._write({"event": "resumed", "step": step})

    def planned(self, step: int, groups: Groups) -> None:
        self._write({"step": step, "event": "planned", "groups": _plain(groups)})

    def trained(self, step: int, groups: Groups, *, version: int) -> None:
        """Record groups that were trained on; ``version`` is that of the weights that generated them."""
        self._write(
            {"step": step, "event": "trained", "version": version, "groups": _plain(groups)}
        )

    def dropped(self, step: int, groups: Groups, *, reason: str) -> None:
        self._write({"step": step, "event": "dropped", "reason": reason, "groups": _plain(groups)})

    def sync(self) -> None:
        """Make everything written so far durable."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _write(self, record: Mapping[str, Any]) -> None:
        if record.get("groups") == {}:
            return
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()


def groups_of(uids: Iterable[Uid]) -> dict[tuple[int, int], int]:
    """Count the episodes of each group."""
    episodes = {(uid.epoch, uid.prompt, uid.sample) for uid in uids}
    return dict(Counter((epoch, prompt) for epoch, prompt, _ in sorted(episodes)))


def replay(path: Path, *, up_to_step: int | None = None) -> Balance:
    """Read a ledger and return what happened to each group, without voided lines.

    A line that a kill cut off (the last one, or the one before a ``resumed``) is left out.

    Raises:
        CheckpointError: another line cannot be read.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    valid: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            if _was_cut_off(lines, number):
                continue
            raise CheckpointError(f"{path}:{number}: not a ledger line: {error}") from error
        if record["event"] == "resumed":
            valid = [kept for kept in valid if kept["step"] <= record["step"]]
        else:
            valid.append(record)
    balance = Balance()
    for record in valid:
        if up_to_step is None or record["step"] <= up_to_step:
            getattr(balance, record["event"]).update(record["groups"])
    return balance


def _was_cut_off(lines: list[str], number: int) -> bool:
    return number == len(lines) or '"event":"resumed"' in lines[number]


def _plain(groups: Groups) -> dict[str, int]:
    return {f"{epoch}.{prompt}": count for (epoch, prompt), count in sorted(groups.items())}

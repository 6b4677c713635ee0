"""Sequences to learn from in files, which are mapped into memory when they are read: of a million rows no more is in
memory than what a step needs.

One file a column. A sequence to learn from was sampled by nobody and has no images here, so columns about these are
arrays of zeros that take no memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.media_columns import media_rows
from rlhf_core.batch.token_columns import TokenColumns, offsets_of
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts.backend import MARGIN

COLUMNS: Mapping[str, type[np.generic]] = {
    "uid": np.int64,
    "num_tokens": np.int64,
    "num_actions": np.int64,
    "num_turns": np.int64,
    "turn_actions": np.int64,
    "turn_rewards": np.float32,
    "reward": np.float32,
    "margin": np.float32,
    "truncated": np.bool_,
    "token_ids": np.int32,
    "action_mask": np.bool_,
    "token_offsets": np.int64,
    "action_offsets": np.int64,
    "read": np.uint64,
}
"""The columns by name, each in a file of its own."""


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """Sequences in the files of a folder."""

    columns: TrajectoryColumns
    read: NDArray[np.uint64]
    """(B,) hash of what the model reads of each sequence's row."""


class ColumnWriter:
    """Writer of sequences into the files of a folder, a batch at a time. Close it before the files are mapped.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self._files = {
            name: self._stack.enter_context((folder / name).open("wb")) for name in COLUMNS
        }
        self._ends = {"token_offsets": 0, "action_offsets": 0}
        for name in self._ends:
            self._write(name, [0])

    def add(self, rows: TrajectoryColumns, read: NDArray[np.uint64]) -> None:
        """Add sequences behind the others."""
        tokens = rows.tokens.read()
        margin = rows.rewards.get(MARGIN, np.full(len(rows), np.nan))
        given = {"margin": margin, "token_ids": tokens.token_ids, "read": read}
        given["action_mask"] = tokens.action_mask
        for name in COLUMNS.keys() - self._ends.keys():
            self._write(name, given.get(name) if name in given else getattr(rows, name))
        for name, lengths in (
            ("token_offsets", rows.num_tokens),
            ("action_offsets", rows.num_actions),
        ):
            ends = self._ends[name] + offsets_of(lengths)[1:]
            self._write(name, ends)
            self._ends[name] = int(ends[-1]) if len(ends) else self._ends[name]

    def close(self) -> None:
        """Write what is left and close the files."""
        self._stack.close()

    def _write(self, name: str, values: Any) -> None:
        self._files[name].write(np.ascontiguousarray(values, COLUMNS[name]).tobytes())


def sizes_of(folder: Path) -> dict[str, int]:
    """Return the bytes of each file of a folder of columns."""
    return {name: (folder / name).stat().st_size for name in COLUMNS}


def mapped(folder: Path) -> StoredColumns:
    """Return the sequences in a folder, whose files are mapped into memory and never written."""
    found = {name: _mapped(folder / name, dtype) for name, dtype in COLUMNS.items()}
    count, actions = len(found["num_tokens"]), int(found["action_offsets"][-1])
    margin = found["margin"]
    columns = TrajectoryColumns(
        uid=found["uid"].reshape(-1, 4),
        num_tokens=found["num_tokens"],
        num_actions=found["num_actions"],
        num_turns=found["num_turns"],
        turn_actions=found["turn_actions"],
        turn_rewards=found["turn_rewards"],
        turn_places=_zeros(len(found["turn_actions"]), np.int64),
        num_steps=_zeros(count, np.int64),
        step_actions=np.zeros(0, dtype=np.int64),
        step_rewards=np.zeros(0, dtype=np.float32),
        num_media=_zeros(count, np.int64),
        media=media_rows(()),
        oldest_version=_zeros(count, np.int64),
        version_counts=found["num_actions"][:, None],
        reward=found["reward"],
        # A set has margins for all pairs or for none.
        rewards={} if np.isnan(margin[:1]).all() else {MARGIN: margin},
        truncated=found["truncated"],
        metrics={},
        tokens=TokenColumns(
            token_ids=found["token_ids"],
            action_mask=found["action_mask"],
            token_offsets=found["token_offsets"],
            rollout_logprobs=_zeros(actions, np.float32),
            weight_version=_zeros(actions, np.int32),
            action_offsets=found["action_offsets"],
        ),
    )
    return StoredColumns(columns, found["read"])


def _mapped(path: Path, dtype: type[np.generic]) -> NDArray[Any]:
    if not path.stat().st_size:
        return np.zeros(0, dtype=dtype)
    # Copy on write: torch warns of arrays that cannot be written, and nothing writes them.
    return np.asarray(np.memmap(path, dtype=dtype, mode="c"))


def _zeros(count: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Return (count,) zeros that share one place in memory."""
    return np.broadcast_to(np.zeros((), dtype=dtype), (count,))

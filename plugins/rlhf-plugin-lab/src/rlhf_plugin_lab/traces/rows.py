"""Recorded tokens of a step with all their digits, from a file of the observer ``token_files``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.lazy import NDArray, np

from ..recorded.problems import Problems
from ..recorded.tokens import ACTION, ID, MAX_ROWS, NUMBERS, UID

LOGPROB, VERSION = "rollout_logprob", "version"
_DERIVED = "ratio"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """``T`` tokens of one rollout."""

    token_ids: NDArray[np.int64]
    """(T,)"""
    action_mask: NDArray[np.bool_]
    """(T,)"""
    columns: dict[str, NDArray[np.float32]]
    """(T,) each, NaN where there is no number."""

    def turns(self) -> list[tuple[int, int]]:
        """Return the beginning and the end of each run of actions: the turns of the policy."""
        edges = np.diff(np.concatenate([[False], self.action_mask, [False]]).astype(np.int8))
        starts, ends = np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist()
        return list(zip(starts, ends, strict=True))


def read_rows(path: Path, problems: Problems) -> dict[str, TokenRows]:
    """Return the tokens of a step's rollouts by their names; none, and a note, where the file cannot be read."""
    if not path.is_file():
        return {}
    import pyarrow.parquet as parquet
    from pyarrow import ArrowException

    try:
        file = parquet.ParquetFile(path)
        names = set(file.schema_arrow.names)
        if file.metadata.num_rows > MAX_ROWS or not {UID, ID, ACTION} <= names:
            problems.note(
                f"files of tokens without the columns {UID}, {ID} and {ACTION}, or of more than {MAX_ROWS} tokens, "
                "are left out",
                path.name,
            )
            return {}
        numbers = [name for name in NUMBERS if name in names and name != _DERIVED]
        table = file.read(columns=[UID, ID, ACTION, *numbers])
        uids = np.array(table.column(UID).to_pylist(), dtype=object)
        ids = table.column(ID).to_numpy().astype(np.int64)
        actions = table.column(ACTION).to_numpy().astype(bool)
        columns = {name: _numbers(table.column(name)) for name in numbers}
    except (OSError, ArrowException, ValueError, TypeError) as error:
        problems.note("files of tokens cannot be read", f"{path.name}: {error}")
        return {}
    starts = [0, *(np.flatnonzero(uids[1:] != uids[:-1]) + 1).tolist()] if len(uids) else []
    return {
        str(uids[start]): TokenRows(
            token_ids=ids[start:end],
            action_mask=actions[start:end],
            columns={name: column[start:end] for name, column in columns.items()},
        )
        for start, end in zip(starts, [*starts[1:], len(uids)], strict=True)
    }


def _numbers(column: Any) -> NDArray[np.float32]:
    found: NDArray[np.float32] = column.to_numpy().astype(np.float32)
    return found

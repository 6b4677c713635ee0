"""The note beside the runs of a replay, ``replay.json``: of which run they are, which steps, and what was changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_core.outside.json_reader import BrokenJson, parse_object
from rlhf_core.storage import written_whole

NOTE = "replay.json"
ORIGINAL, CHANGED = "original", "changed"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayNote:
    """Run, span and changed options of a replay."""

    run: str
    """Folder of the run, absolute; empty: it is not known."""
    first: int
    last: int
    """Steps from ``first`` to ``last``; both 0: they are not known."""
    changed: tuple[str, ...] = ()
    """Words of the changed options."""


def write_note(out: Path, run: Path, first: int, last: int, changed: Sequence[str]) -> None:
    """Write the note of a replay into the folder of its runs.

    Raises:
        StorageError: it cannot be written.
    """
    note = {"run": str(run.resolve()), "first": first, "last": last, "changed": list(changed)}
    out.mkdir(parents=True, exist_ok=True)
    with written_whole(out / NOTE) as file:
        file.write(f"{json.dumps(note)}\n".encode())


def runs_of(folder: Path) -> list[Path]:
    """Return the runs of a replay's folder; none: it is no such folder."""
    if not (folder / NOTE).is_file() and (folder / "metrics.jsonl").exists():
        return []
    parts = [folder / name for name in (ORIGINAL, CHANGED)]
    return [part for part in parts if (part / "metrics.jsonl").is_file()]


def with_replayed(runs: Sequence[Path]) -> Iterator[Path]:
    """Yield the runs, in the place of a replay's folder those in it."""
    for run in runs:
        yield from runs_of(run) or [run]


def note_of(run: Path) -> ReplayNote | None:
    """Return the note of the replay that a run is a part of; None: it is part of none, or the note cannot be read."""
    path = run.resolve().parent / NOTE
    if run.resolve().name not in (ORIGINAL, CHANGED) or not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            note = parse_object(file.read(_MAX_BYTES))
    except (OSError, BrokenJson, RecursionError):
        return None
    first, last, changed = note.get("first"), note.get("last"), note.get("changed")
    return ReplayNote(
        run=note["run"] if isinstance(note.get("run"), str) else "",
        first=first if type(first) is int else 0,
        last=last if type(last) is int else 0,
        changed=tuple(map(str, changed)) if isinstance(changed, list) else (),
    )

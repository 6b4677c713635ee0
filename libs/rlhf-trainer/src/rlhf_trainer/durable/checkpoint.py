"""Checkpoints: a folder that is complete, with hashes, or does not exist under its name.

    checkpoints/step-00000040/
        manifest.json     schema, step, sha256 and size of every other file
        state.json        the loop's own state
        policy/ critic/   files that each role's backend saved

A checkpoint is written as ``step-N.tmp``, made durable, then renamed; only then are older ones removed, but for the
newest ones that are kept and the best one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import CheckpointError
from rlhf_core.outside.json_reader import BrokenJson, parse_object
from rlhf_core.storage.atomic import remove, sync_folder, sync_tree
from rlhf_core.storage.run_folder import RESTART, complete, is_checkpoint
from rlhf_core.storage.writing import writing

SCHEMA = 3
MANIFEST = "manifest.json"
_LEFTOVERS = (".tmp", ".void")
"""Suffixes of unfinished checkpoints and removals, and of checkpoints of steps that a resumed run does again."""

log = logging.getLogger(__name__)


def step_folder(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


async def save(
    root: Path, step: int, state: dict[str, Any], fill: Callable[[Path], Awaitable[None]]
) -> Path:
    """Write the checkpoint of ``step`` and return its folder.

    Args:
        state: the loop's own state, as JSON values.
        fill: function that writes the roles into the folder that it is given.

    Raises:
        CheckpointError: the checkpoint could not be written (disk full, no permission); older ones are untouched.
    """
    final = step_folder(root, step)
    temporary = final.with_name(final.name + ".tmp")
    what = f"the checkpoint of step {step} in {root}"
    with writing(
        what, temporary, advice="Earlier checkpoints are untouched.", error=CheckpointError
    ):
        remove(temporary)
        temporary.mkdir(parents=True)
        await fill(temporary)
        (temporary / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
        manifest = {"schema": SCHEMA, "step": step, "files": _digests(temporary)}
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        sync_tree(temporary)
        remove(final)
        temporary.rename(final)
        sync_folder(root)
    return final


def read(folder: Path) -> dict[str, Any]:
    """Check every file of a checkpoint against its manifest and return the loop's state.

    Raises:
        CheckpointError: names the first file that is missing, cut off or changed.
    """
    manifest = _read_json(folder / MANIFEST)
    if manifest.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{folder}: expected checkpoint schema {SCHEMA}, got {manifest.get('schema')}. Resume with the rlhf-core "
            "that wrote it (config.toml in the run folder names it), or start a new run in another --output.",
            code="checkpoint/other-version",
        )
    if problem := _misnamed(folder, manifest):
        raise CheckpointError(problem, code="checkpoint/misnamed")
    files = manifest.get("files")
    if not isinstance(files, dict) or "state.json" not in files:
        problem = f"{folder / MANIFEST}: expected 'files' with the sha256 of each file"
        raise CheckpointError(problem, code="checkpoint/no-hashes")
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    for name, expected in files.items():
        if name not in found:
            raise CheckpointError(f"{folder}: {name} is missing", code="checkpoint/incomplete")
        if _digest(folder / name) != expected:
            problem = f"{folder}: {name} is damaged (its sha256 differs from the manifest's)"
            raise CheckpointError(problem, code="checkpoint/damaged")
    if extra := found - files.keys() - {MANIFEST}:
        problem = f"{folder}: {sorted(extra)[0]} does not belong to the checkpoint"
        raise CheckpointError(problem, code="checkpoint/stray-file")
    state = _read_json(folder / "state.json")
    if state.get("step") != manifest.get("step"):
        raise CheckpointError(
            f"{folder}: state.json is of step {state.get('step')!r}, the manifest of step {manifest.get('step')!r}",
            code="checkpoint/damaged",
        )
    return state


def newest_valid(root: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest undamaged checkpoint's folder and state, or None. Damaged ones are logged and passed over.

    Raises:
        CheckpointError: one has another step's name, so that it is not known which is the newest.
    """
    for folder in reversed(complete(root)):
        if problem := misnamed(folder):
            raise CheckpointError(problem, code="checkpoint/misnamed")
        try:
            return folder, read(folder)
        except CheckpointError as error:
            log.warning("passed over a checkpoint: %s", error)
    return None


def void_later(root: Path, step: int) -> None:
    """Rename the checkpoints of steps after ``step``, which a run that continues from ``step`` does again.

    A kill must not bring them back, so they are no longer found; the next ``retain`` removes them. One with another
    step's name stays as it is.
    """
    for folder in complete(root):
        if step_of(folder) > step and not misnamed(folder):
            _rename(folder, ".void")


def retain(root: Path, keep: int, best_steps: Collection[int]) -> None:
    """Remove all but the newest ``keep`` checkpoints and the best ones, and leftovers of killed saves.

    Raises:
        CheckpointError: an older checkpoint cannot be removed.
    """
    try:
        for folder in complete(root)[:-keep]:
            if step_of(folder) not in best_steps:
                # Renamed first: a kill in the middle of the removal must not leave a folder that looks complete.
                _rename(folder, ".tmp")
        for leftover in root.glob("step-*"):
            if leftover.suffix in _LEFTOVERS:
                remove(leftover)
    except OSError as error:
        problem = f"an older checkpoint cannot be removed: {error}"
        raise CheckpointError(problem, code="checkpoint/not-removed") from error


def misnamed(folder: Path) -> str:
    """Return the error text for a checkpoint that has another step's name; empty for others, and for damaged ones."""
    try:
        return _misnamed(folder, _read_json(folder / MANIFEST))
    except CheckpointError:
        return ""


def _misnamed(folder: Path, manifest: Mapping[str, Any]) -> str:
    step = manifest.get("step")
    if not is_checkpoint(folder) or not isinstance(step, int) or step == step_of(folder):
        return ""
    name = step_folder(folder.parent, step).name
    return (
        f"{folder}: expected the checkpoint of step {step_of(folder)}, and its manifest says step {step}. Rename the "
        f"folder to {name}, or move it out of {folder.parent}."
    )


def _rename(folder: Path, suffix: str) -> None:
    target = folder.with_name(folder.name + suffix)
    remove(target)
    folder.rename(target)


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): _digest(path) for path in files}


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        problem = f"{path} cannot be read: {error}"
        raise CheckpointError(problem, code="checkpoint/unreadable") from error


def _read_json(path: Path) -> dict[str, Any]:
    # os.path answers no where Path would raise, as in a folder that may not be entered.
    if not os.path.isfile(path):
        problem = f"{path.parent} is not a checkpoint: it has no {path.name}"
        raise CheckpointError(problem, code="checkpoint/missing-file")
    try:
        return parse_object(path.read_bytes())
    except (OSError, BrokenJson) as error:
        problem = f"{path} cannot be read: {error}"
        raise CheckpointError(problem, code="checkpoint/unreadable") from error


def how_far_back(step: int, saved_step: int, seconds: float) -> str:
    """Return what a run loses whose last whole step cannot be saved, and which --resume continues.

    Args:
        saved_step: the step of the newest checkpoint; 0: there is none.
        seconds: since that checkpoint, or since the start.
    """
    count = step - saved_step
    again = f"does {count} step{'' if count == 1 else 's'} ({seconds / 60:.1f} minutes) again"
    if saved_step:
        how = f"--resume auto continues from step {saved_step} and {again}"
    else:
        how = f"no checkpoint was due before, and --resume {RESTART} starts over and {again}"
    return f"{how}. A smaller --checkpoint.every or --checkpoint.every_minutes loses less"

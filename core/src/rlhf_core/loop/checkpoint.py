"""Checkpoints: a folder that is complete, with hashes, or does not exist under its name.

    checkpoints/step-00000040/
        manifest.json     schema, step, sha256 and size of every other file
        state.json        the loop's own state
        policy/ critic/   what each role's backend saved

Written as ``step-N.tmp``, made durable, then renamed; only then are older ones removed, never the newest valid one and
never the best one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .atomic import sync_folder, sync_tree

SCHEMA = 1
MANIFEST = "manifest.json"

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
        state: JSON values; what the loop itself has to remember.
        fill: writes the roles into the folder that it is given.

    Raises:
        CheckpointError: it could not be written (disk full, no permission); nothing older was touched.
    """
    final = step_folder(root, step)
    temporary = final.with_name(final.name + ".tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        await fill(temporary)
        (temporary / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
        manifest = {"schema": SCHEMA, "step": step, "files": _digests(temporary)}
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        sync_tree(temporary)
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        sync_folder(root)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(
            f"the checkpoint of step {step} could not be written to {root}: {error}. Earlier checkpoints are untouched."
        ) from error
    return final


def read(folder: Path) -> dict[str, Any]:
    """Check every file of a checkpoint against its manifest and return the loop's state.

    Raises:
        CheckpointError: names the first file that is missing, cut off or changed.
    """
    manifest = _read_json(folder / MANIFEST)
    if manifest.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{folder}: written with checkpoint schema {manifest.get('schema')}, this version reads {SCHEMA}"
        )
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    for name, expected in manifest["files"].items():
        if name not in found:
            raise CheckpointError(f"{folder}: {name} is missing")
        if _digest(folder / name) != expected:
            raise CheckpointError(
                f"{folder}: {name} is damaged (its sha256 differs from the manifest's)"
            )
    if extra := found - manifest["files"].keys() - {MANIFEST}:
        raise CheckpointError(f"{folder}: {sorted(extra)[0]} does not belong to the checkpoint")
    return _read_json(folder / "state.json")


def complete(root: Path) -> list[Path]:
    """Folders of finished checkpoints, oldest first; their content is not checked."""
    return sorted(path for path in root.glob("step-*") if path.suffix != ".tmp")


def newest_valid(root: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint whose files are whole, with its state. Damaged ones are reported and passed over."""
    for folder in reversed(complete(root)):
        try:
            return folder, read(folder)
        except CheckpointError as error:
            log.warning("passed over a checkpoint: %s", error)
    return None


def retain(root: Path, keep: int, best_step: int | None) -> None:
    """Remove all but the newest ``keep`` checkpoints and the best one, and leftovers of killed saves."""
    for leftover in root.glob("step-*.tmp"):
        shutil.rmtree(leftover)
    for folder in complete(root)[:-keep]:
        if step_of(folder) != best_step:
            # Renamed first: a kill in the middle of the removal must not leave a folder that looks complete.
            doomed = folder.with_name(folder.name + ".tmp")
            folder.rename(doomed)
            shutil.rmtree(doomed)


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): _digest(path) for path in files}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} is not a checkpoint: it has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected an object, found {type(content).__name__}")
    return content

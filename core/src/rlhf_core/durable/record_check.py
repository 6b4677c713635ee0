"""Whether a run's records still begin with what a checkpoint vouches for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .appending import Extent, RunningDigest
from .run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRecords:
    """The records of a run folder, by file name."""

    whole: Mapping[str, RunningDigest]
    """Digests of what the checkpoint vouches for, of files that have it unchanged."""
    damaged: Mapping[str, str]
    """What is wrong with the others."""


def check_records(folder: RunFolder, extents: Mapping[str, Extent]) -> CheckedRecords:
    """Compare the beginning of each record with its extent when the checkpoint was saved."""
    whole: dict[str, RunningDigest] = {}
    damaged: dict[str, str] = {}
    for path in folder.records:
        digest = RunningDigest()
        if problem := _problem(path, extents[path.name], digest):
            damaged[path.name] = problem
        else:
            whole[path.name] = digest
    return CheckedRecords(whole=whole, damaged=damaged)


def _problem(path: Path, expected: Extent, digest: RunningDigest) -> str:
    """Read the beginning of a file into ``digest`` and say what is wrong with it, if anything is."""
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

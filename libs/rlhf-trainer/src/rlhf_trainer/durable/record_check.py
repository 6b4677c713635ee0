"""Check that a run's records still begin as they were when a checkpoint was saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_core.storage.run_folder import RunFolder

from .records import Extent, RunningDigest


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

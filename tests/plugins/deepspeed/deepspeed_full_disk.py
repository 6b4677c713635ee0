"""A rank that has no room for its files."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deepspeed_scenarios import TRAINING, Found, Place, steps

from rlhf_core import StorageError

ROOM_BYTES = 4096
"""Of a file, which none of the files of weights and optimizers fits in."""


def full_disk(place: Place, found: Found) -> None:
    """One rank cannot write a checkpoint, then not an export; the role goes on, and its next files are those of a role
    that had room."""
    straight, short = place.start(**TRAINING), place.start(**TRAINING)
    for backend in (straight, short):
        steps(place, backend, (0, 1))
    straight.save(place.folder / "straight")
    for full in range(place.world_size):
        for name in ("save", "export"):
            with without_room(place.rank == full):
                found.facts[f"{name} {full}"] = error_of(
                    getattr(short, name), place.folder / f"{name}_{full}"
                )
    short.save(place.folder / "short")
    for backend in (straight, short):
        steps(place, backend, (2, 3))
    found.facts["went on"] = short.checksum() == straight.checksum()
    for backend in (straight, short):
        backend.close()


@contextmanager
def without_room(applies: bool) -> Iterator[None]:
    """Let no file of this process grow beyond ``ROOM_BYTES`` inside of the context; Python ignores the signal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if applies:
        resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def error_of(write: Any, folder: Any) -> str:
    """Return the text of the ``StorageError`` of a call, and empty text where there is none."""
    try:
        write(folder)
    except StorageError as error:
        return f"StorageError: {error}"
    return ""

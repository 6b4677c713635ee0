"""Steps that fail after their first update, and are undone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from deepspeed_material import BREAKING, KINDS, MUON, Breaking, make_batch, make_plan
from deepspeed_scenarios import TRAINING, Found, Place, steps

from rlhf_core.contracts import PolicyObjective

ENOUGH = 2**30
UNDONE = KINDS | {"muon": {"optimizer": MUON}}
"""What the role of a run has of its own that is undone."""


def undoing(place: Place, found: Found) -> None:
    """A step whose second update fails on one rank alone is undone, saved and gone on from in another process's place.
    Beside it a run that does without that step."""
    objective = PolicyObjective(loss=BREAKING, aggregation="token-mean")
    for kind, changes in UNDONE.items():
        spec = {**TRAINING, "objective": objective, **changes}
        straight, failed = place.start(**spec), place.start(**spec)
        for backend in (straight, failed):
            steps(place, backend, (0, 1))
        straight.save(place.folder / f"straight_{kind}")
        update(place, failed, 2, undo_bytes=ENOUGH)
        with broken_on(place, place.world_size - 1):
            found.facts[f"error {kind}"] = error_of(place, failed, 3)
        found.facts[f"undone {kind}"] = failed.undo(2)
        found.facts[f"weights {kind}"] = failed.checksum() == straight.checksum()
        failed.save(place.folder / f"undone_{kind}")
        resumed = place.start(**spec)
        resumed.load(place.folder / f"undone_{kind}")
        for backend in (straight, resumed):
            steps(place, backend, (4, 5))
        found.facts[f"went on {kind}"] = resumed.checksum() == straight.checksum()
        for backend in (straight, failed, resumed):
            backend.close()


def undoing_idle(place: Place, found: Found) -> None:
    """Updates are undone while nothing is computed, and the role goes on; a copy is made at each step."""
    for kind, changes in UNDONE.items():
        spec = {**TRAINING, **changes}
        straight, undone = place.start(**spec), place.start(**spec)
        for seed in (0, 1):
            begun = undone.updates_begun
            update(place, undone, 7, undo_bytes=ENOUGH)
            update(place, undone, 8)
            found.facts[f"undone {kind} {seed}"] = undone.undo(begun)
            for backend in (straight, undone):
                update(place, backend, seed)
        found.facts[f"went on {kind}"] = undone.checksum() == straight.checksum()
        begun = undone.updates_begun
        update(place, undone, 2, undo_bytes=10)
        found.facts[f"too large {kind}"] = undone.undo(begun)
        for backend in (straight, undone):
            backend.close()


@contextmanager
def broken_on(place: Place, rank: int) -> Iterator[None]:
    """Have the loss of one rank raise inside of the context."""
    Breaking.is_broken = place.rank == rank
    try:
        yield
    finally:
        Breaking.is_broken = False


def update(place: Place, backend: Any, seed: int, **plan: Any) -> None:
    batch = make_batch(seed=seed)
    backend.train_step(place.part(batch), replace(make_plan(batch), **plan))


def error_of(place: Place, backend: Any, seed: int) -> str:
    try:
        update(place, backend, seed)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""

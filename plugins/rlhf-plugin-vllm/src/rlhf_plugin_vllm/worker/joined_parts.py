"""Copies at equal distances, joined into one: the experts of a stack, each of which was loaded by itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .recorder import CopiedPart


def joined(parts: Sequence[CopiedPart]) -> list[CopiedPart]:
    """Return the same copies in fewer parts.

    Parts of equal shape and strides are one with a dimension more where both their elements in the weight and their
    places in the parameter have equal distances. Others stay as they are.
    """
    found: list[CopiedPart] = []
    run: list[CopiedPart] = []
    for part in sorted(parts, key=lambda each: each.offset):
        if run and not _continues(run, part):
            found.append(_as_one(run))
            run = []
        run.append(part)
    if run:
        found.append(_as_one(run))
    return found


def _continues(run: Sequence[CopiedPart], part: CopiedPart) -> bool:
    last = run[-1]
    if not _is_alike(last, part):
        return False
    if len(run) == 1:
        # The same elements in two places are two copies.
        return min(_step(last, part)) > 0
    return _step(*run[:2]) == _step(last, part)


def _is_alike(one: CopiedPart, other: CopiedPart) -> bool:
    return (
        one.stride == other.stride
        and one.kept.shape == other.kept.shape
        and one.kept.stride() == other.kept.stride()
        and one.kept.dtype == other.kept.dtype
        and one.kept.untyped_storage().data_ptr() == other.kept.untyped_storage().data_ptr()
    )


def _step(one: CopiedPart, other: CopiedPart) -> tuple[int, int]:
    """Return the distances of two copies in the weight and in the parameter."""
    in_parameter = int(other.kept.storage_offset()) - int(one.kept.storage_offset())
    return other.offset - one.offset, in_parameter


def _as_one(run: Sequence[CopiedPart]) -> CopiedPart:
    first = run[0]
    if len(run) == 1:
        return first
    in_weight, in_parameter = _step(*next(pairwise(run)))
    kept = first.kept.as_strided(
        (len(run), *first.kept.shape),
        (in_parameter, *first.kept.stride()),
        first.kept.storage_offset(),
    )
    return CopiedPart(kept, (in_weight, *first.stride), first.offset)

"""Samples of rollouts as a table, and the images that are shown beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rlhf_core.contracts import RolloutSample

COLUMNS = ("step", "uid", "prompt", "response", "reward", "truncated")

Cell = str | int | float | bool


def rows(step: int, samples: Sequence[RolloutSample]) -> list[list[Cell]]:
    """Return one row for each sample, with the cells of ``COLUMNS``."""
    return [
        [step, sample.uid, sample.prompt, sample.response, sample.reward, sample.truncated]
        for sample in samples
    ]


class ShownImage(NamedTuple):
    """An image with the name under which charts have it."""

    name: str
    """``samples/image_N``."""
    uid: str
    """Uid of its sample."""
    file: Path


def shown_images(samples: Sequence[RolloutSample], most: int) -> list[ShownImage]:
    """Return the first image of each of the first ``most`` samples that have one."""
    seeing = [sample for sample in samples if sample.images][:most]
    return [
        ShownImage(f"samples/image_{number}", sample.uid, sample.images[0])
        for number, sample in enumerate(seeing)
    ]

"""Images of samples as loggers show them: the first image of each of a few samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rlhf_core.contracts import RolloutSample


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

"""Samples of rollouts as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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

"""Refusal of columns with numbers that nothing may be trained on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import NonFiniteError
from .trajectory_columns import TrajectoryColumns


def require_finite(batch: TrajectoryColumns, name: str, column: NDArray[np.float32]) -> None:
    """Refuse a column (sum of A,) that has NaN or infinity.

    Raises:
        NonFiniteError: names the first sample and action token.
    """
    bad = np.flatnonzero(~np.isfinite(column))
    if len(bad):
        row = int(np.searchsorted(batch.action_offsets, bad[0], side="right")) - 1
        uid = ".".join(map(str, batch.uid[row].tolist()))
        raise NonFiniteError(
            f"{name} of sample {uid} is {column[bad[0]]} at action token {bad[0] - batch.action_offsets[row]} "
            f"({len(bad)} such values in this batch); nothing was trained on it"
        )

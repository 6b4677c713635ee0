"""Responses that the next update imitates, as a function of how many were taken before."""

from __future__ import annotations

import numpy as np

from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.rng import generator_of


class SupervisedRows:
    """Rows of good responses in an endless sequence of epochs, each in an order of its own.

    Args:
        rows: all supervised rows.
        batch_size: rows per optimizer update; more than there are counts as all.
    """

    def __init__(self, rows: TrajectoryColumns, batch_size: int, seed: int) -> None:
        self._rows = rows
        self._batch_size = min(batch_size, len(rows))
        self._seed = seed

    def take(self, taken: int) -> TrajectoryColumns:
        """Return the next rows after the first ``taken``. A row at the end of an epoch that comes again at the start of
        the next is returned once."""
        positions = np.arange(taken, taken + self._batch_size)
        epochs, places = np.divmod(positions, len(self._rows))
        chosen = np.concatenate(
            [self._order(epoch)[places[epochs == epoch]] for epoch in np.unique(epochs).tolist()]
        )
        return self._rows.select(np.unique(chosen))

    @property
    def batch_size(self) -> int:
        """Rows that one call to ``take`` moves on by."""
        return self._batch_size

    def _order(self, epoch: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        order: np.ndarray[tuple[int], np.dtype[np.int64]]
        order = generator_of(self._seed, "supervised", epoch).permutation(len(self._rows))
        return order

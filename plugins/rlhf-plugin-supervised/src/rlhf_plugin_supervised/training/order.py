"""The units of each update, as a function of the update's number: a resumed run takes the rest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlhf_core.runs import generator_of


class UnitOrder:
    """Units (conversations, or pairs of answers) in epochs: each unit once an epoch, and the last update of an epoch
    takes what is left.

    Args:
        shuffle: True: each epoch has an order of its own, drawn from seed and epoch.
    """

    def __init__(self, num_units: int, batch_size: int, seed: int, *, shuffle: bool) -> None:
        self._num_units = num_units
        self._batch_size = batch_size
        self._seed = seed
        self._shuffle = shuffle
        self._order: tuple[int, NDArray[np.int64]] | None = None
        """The epoch of the last update, and the units in its order."""

    @property
    def updates_per_epoch(self) -> int:
        return -(-self._num_units // self._batch_size)

    def units(self, update: int) -> NDArray[np.int64]:
        """Return the units of an update, in rising order; the first update is 0."""
        epoch, position = divmod(update, self.updates_per_epoch)
        first = position * self._batch_size
        return np.sort(self._epoch(epoch)[first : first + self._batch_size])

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            units = np.arange(self._num_units)
            if self._shuffle:
                units = generator_of(self._seed, "examples", epoch).permutation(self._num_units)
            self._order = epoch, units
        return self._order[1]

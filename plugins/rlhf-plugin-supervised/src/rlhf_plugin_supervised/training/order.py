"""The units of each update, as a function of the update's number: a resumed run takes the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rlhf_trainer.runs import epoch_counts, epoch_order, generator_of


class UnitOrder:
    """Units (conversations, or pairs of answers) in epochs: each unit at most once an epoch, and the last update of an
    epoch takes what is left.

    Args:
        sizes: number of units of each set.
        probabilities: shares of the sets in an epoch, as those of ``rlhf train``; empty: each unit comes in each epoch.
        shuffle: True: each epoch has an order of its own, drawn from seed and epoch.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        batch_size: int,
        seed: int,
        *,
        shuffle: bool,
        probabilities: Sequence[float] = (),
    ) -> None:
        self._sizes = sizes
        self._probabilities = probabilities
        self._batch_size = batch_size
        self._seed = seed
        self._shuffle = shuffle
        self._order: tuple[int, NDArray[np.int64]] | None = None
        """The epoch of the last update, and the units in its order."""

    @property
    def updates_per_epoch(self) -> int:
        return -(-sum(epoch_counts(self._sizes, self._probabilities)) // self._batch_size)

    def units(self, update: int) -> NDArray[np.int64]:
        """Return the units of an update, in rising order; the first update is 0."""
        epoch, position = divmod(update, self.updates_per_epoch)
        first = position * self._batch_size
        return np.sort(self._epoch(epoch)[first : first + self._batch_size])

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, self._of_epoch(epoch)
        return self._order[1]

    def _of_epoch(self, epoch: int) -> NDArray[np.int64]:
        if self._probabilities:
            return epoch_order(
                self._sizes,
                self._probabilities,
                epoch=epoch,
                seed=self._seed,
                shuffle=self._shuffle,
            )
        count = sum(self._sizes)
        if not self._shuffle:
            return np.arange(count)
        return generator_of(self._seed, "examples", epoch).permutation(count)


def passes(num_rows: int, batch_size: int) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of each pass over a model that only computes."""
    for first in range(0, num_rows, batch_size):
        yield np.arange(first, min(first + batch_size, num_rows))

"""Fragments: the parts of parameters that this rank updates, and their places in its flat float32 vectors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """Consecutive elements of one parameter in one of this rank's vectors."""

    name: str
    vector: int
    """Index of the vector among the rank's float32 vectors."""
    offset: int
    """Index of the first element in the vector."""
    start: int
    """Index of the first element in the flattened parameter."""
    length: int
    """Number of elements, padding left out."""

    @property
    def stop(self) -> int:
        """Index behind the last element in the flattened parameter."""
        return self.start + self.length

    def of(self, vector: Tensor) -> Tensor:
        """Return a view (length,) of the fragment in ``vector``, which has the layout of the vector ``self.vector``."""
        return vector.detach().narrow(0, self.offset, self.length)

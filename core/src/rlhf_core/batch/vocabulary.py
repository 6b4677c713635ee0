"""The token ids of a run, which its models may have fewer or more rows than."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Token ids that have a probability; a model's rows for others pad its output head."""

    size: int
    """One more than the largest id."""
    holes: tuple[int, ...] = ()
    """Smaller ids that have none, ascending."""

    def unused(self, rows: int) -> tuple[int, ...]:
        """Return the ids without a probability of a model whose output head has so many rows, ascending."""
        return (*(hole for hole in self.holes if hole < rows), *range(self.size, rows))

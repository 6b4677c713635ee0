"""Choice of the environment that plays a task which comes from none: a row of data, or an empty task."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from rlhf_core.errors import DataError

from ..mixing import spread

COLUMN = "environment"
"""Column of a row that names the environment, in runs with several."""


class Players:
    """The environments of a run. A run's only one plays everything; of several, each plays its share.

    Args:
        shares: share of each environment by name; they add up to 1.
    """

    def __init__(self, shares: Mapping[str, float] | None = None) -> None:
        self.shares = dict(shares or {})
        self._names = tuple(self.shares)
        self._ends = tuple(accumulate(self.shares.values()))

    def of(self, index: int, row: Mapping[str, Any] | None = None) -> str:
        """Return the name of the environment that plays a task; empty in a run without environments.

        Of several, it is the one that the row's column ``environment`` names. Other tasks go by their index, so that a
        task keeps its environment for as long as the run has the same ones with the same shares.

        Raises:
            DataError: the row names no environment of the run.
        """
        if len(self._names) < 2:
            return self._names[0] if self._names else ""
        named = row.get(COLUMN) if row else None
        if named is None:
            at = spread(index)
            ends = zip(self._names, self._ends, strict=True)
            return next((name for name, end in ends if at < end), self._names[-1])
        if named not in self._names:
            raise DataError(
                f"row {index}: its column {COLUMN!r} is {named!r}; expected one of the run's environments: "
                f"{', '.join(self._names)}. Correct it, or add the environment with --env.",
                code="environment/unknown",
            )
        return str(named)

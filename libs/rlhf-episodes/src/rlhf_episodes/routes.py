"""Experts of the tokens of one branch, as far as engines have told them.

Axes: ``n`` tokens of the branch, ``L`` layers with experts, ``k`` experts of a token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class BranchRoutes:
    """Routes of a branch's own tokens: each those of the first pass that computed it, whose keys its actions saw."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: NDArray[np.signedinteger] | None = None

    def learn(self, routes: NDArray[np.signedinteger]) -> None:
        """Take the routes (n, L, k) of the first tokens where none are known."""
        if self._ids is None:
            self._ids = np.full((0, *routes.shape[1:]), -1, dtype=routes.dtype)
        missing = len(routes) - len(self._ids)
        if missing > 0:
            new = np.full((missing, *routes.shape[1:]), -1, dtype=routes.dtype)
            self._ids = np.concatenate([self._ids, new])
        known = self._ids[: len(routes)]
        unknown = (known < 0).any(axis=(1, 2))
        known[unknown] = routes[unknown]

    def first(self, count: int) -> NDArray[np.signedinteger] | None:
        """Return the routes (count, L, k) of the first tokens, -1 where none are known; None: nothing is known."""
        if self._ids is None:
            return None
        found = self._ids[:count]
        missing = count - len(found)
        return np.pad(found, ((0, missing), (0, 0), (0, 0)), constant_values=-1)

"""Drift: an answer of the policy that a later input holds again, but not where or not as it was sampled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ID_BITS = 21
"""Bits of a token id in the number of three tokens. Ids of 2 million and more are cut, which only may find too much."""


class LaterInput:
    """The tokens of an input from just before its fork on, in which earlier answers are looked for.

    Args:
        token_ids: (R,) the input from two tokens before the fork on, or from its start.
    """

    def __init__(self, token_ids: NDArray[np.int32]) -> None:
        self._pairs = np.unique(_runs_of(token_ids, 2))
        self._triples = np.unique(_runs_of(token_ids, 3))

    def num_changed(self, answer: NDArray[np.int32], num_kept: int) -> int | None:
        """Return how many tokens of an answer stand there as other tokens; None: the input does not hold the answer.

        It does if at least half of the answer's tokens were kept, or belong to three tokens in a row that stand in the
        input too. Of an answer that it holds, those tokens are changed which were not kept and have no neighbor beside
        which they stand in the input; unless they were only taken out, as templates take out reasoning, so that in the
        input the tokens around them are neighbors.

        Args:
            answer: (1 + A,) the token before the answer, then the tokens that were sampled.
            num_kept: number of the answer's first tokens that are on the path which the input shares.
        """
        is_kept = np.arange(len(answer)) <= num_kept  # (1 + A,)
        width = min(3, len(answer))
        held = is_kept | _covered(answer, width, self._triples if width == 3 else self._pairs)
        if 2 * int(held[1:].sum()) < len(answer) - 1:
            return None
        missing = np.flatnonzero(~(is_kept | _covered(answer, 2, self._pairs))[1:]) + 1
        runs = np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1) if len(missing) else []
        return sum(len(run) for run in runs if not self._is_taken_out(answer, run))

    def _is_taken_out(self, answer: NDArray[np.int32], run: NDArray[np.int64]) -> bool:
        before, after = int(run[0]) - 1, int(run[-1]) + 1
        if after == len(answer):
            return False
        return bool(_stand_in(_runs_of(answer[[before, after]], 2), self._pairs)[0])


def _runs_of(token_ids: NDArray[np.int32], width: int) -> NDArray[np.int64]:
    """Return each run of ``width`` tokens, at most 3, as one number."""
    count = max(0, len(token_ids) - width + 1)
    ids = token_ids.astype(np.int64) & ((1 << _ID_BITS) - 1)
    runs = np.zeros(count, dtype=np.int64)
    for offset in range(width):
        runs = (runs << _ID_BITS) | ids[offset : offset + count]
    return runs


def _covered(
    token_ids: NDArray[np.int32], width: int, known: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return True at each token that belongs to a run of ``width`` tokens which is among the sorted ``known``."""
    covered = np.zeros(len(token_ids), dtype=bool)
    starts = np.flatnonzero(_stand_in(_runs_of(token_ids, width), known))
    for offset in range(width):
        covered[starts + offset] = True
    return covered


def _stand_in(runs: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.bool_]:
    if not len(known):
        return np.zeros(len(runs), dtype=bool)
    nearest = known[np.minimum(np.searchsorted(known, runs), len(known) - 1)]
    return np.asarray(nearest == runs)

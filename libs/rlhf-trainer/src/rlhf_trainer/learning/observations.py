"""Observations as indices: equal where the policy had read the same before a turn, within a prompt's group."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.trajectory_columns import TrajectoryColumns


def observations(batch: TrajectoryColumns) -> NDArray[np.int64]:
    """Return (sum of A,) the dense index of what the policy read before each action's turn: text and images.

    That is the prompt for the first turn, and for later ones what the environment showed since the turn before.
    """
    known: dict[tuple[int, bytes], int] = {}
    columns, action_turn = batch.tokens.read(), batch.action_turn
    seen = batch.tokens_with_images()
    out = np.empty(len(action_turn), dtype=np.int64)
    for row, group in enumerate(batch.group.tolist()):
        whole = slice(columns.token_offsets[row], columns.token_offsets[row + 1])
        span = slice(columns.action_offsets[row], columns.action_offsets[row + 1])
        tokens, turns = seen[row], action_turn[span]
        places = np.flatnonzero(columns.action_mask[whole])
        first = np.flatnonzero(np.diff(turns, prepend=-1))  # the first action of each turn
        read_from = 0
        for turn, start in enumerate(first.tolist()):
            end = int(first[turn + 1]) if turn + 1 < len(first) else len(turns)
            read = tokens[read_from : places[start]].tobytes()
            out[span][start:end] = known.setdefault((group, read), len(known))
            read_from = int(places[end - 1]) + 1
    return out

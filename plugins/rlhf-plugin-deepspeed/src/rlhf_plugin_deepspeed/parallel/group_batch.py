"""Batches of a rank group: the rows that the runtime gave to any rank of the group, joined on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_core.contracts import MARGIN, TokenColumns, TopTokens, TrainBatch, TrajectoryColumns

from .rank_group import RankGroup

TOP_IDS, TOP_LOGPROBS = "top ids", "top logprobs"
COLUMN, MARGIN_COLUMN = "column/", "margin"
ROUTES = "routes"
PER_ROW = ("uid", "num_turns", "reward", "truncated")
PER_TURN = ("turn_actions", "turn_rewards")
PER_TOKEN = ("token_ids", "action_mask")
PER_ACTION = ("rollout_logprobs", "weight_version")
LENGTHS = ("num_tokens", "num_actions")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBatch:
    """Rows that a rank group computes together."""

    batch: TrainBatch
    """Rows of all ranks of the rank group, one rank after the other."""
    own: slice
    """Actions of this rank's own rows, as a slice of columns (sum of A, ...)."""


def group_batch(own: TrainBatch, group: RankGroup) -> GroupBatch:
    """Return the rows of all ranks of the rank group; a collective call of its ranks."""
    if group.size == 1:
        return GroupBatch(batch=own, own=slice(None))
    named = _arrays(own)
    parts = group.arrays_of_all(list(named.values()))
    joined = {
        name: np.concatenate([part[index] for part in parts]) for index, name in enumerate(named)
    }
    actions = list(named).index("num_actions")
    counts = [int(part[actions].sum()) for part in parts]
    begin = sum(counts[: group.rank])
    return GroupBatch(
        batch=TrainBatch(
            trajectories=_trajectories(joined),
            columns={
                name.removeprefix(COLUMN): column
                for name, column in joined.items()
                if name.startswith(COLUMN)
            },
            teacher_top=own.teacher_top
            and TopTokens(token_ids=joined[TOP_IDS], logprobs=joined[TOP_LOGPROBS]),
            # A rank may have no supervised rows where others have some: it takes part all the same.
            supervised=None
            if own.supervised is None
            else group_rows(own.supervised, group).batch.trajectories,
        ),
        own=slice(begin, begin + counts[group.rank]),
    )


def group_rows(own: TrajectoryColumns, group: RankGroup) -> GroupBatch:
    """Return the rows of all ranks of the rank group, without columns; a collective call of its ranks."""
    return group_batch(TrainBatch(trajectories=own, columns={}), group)


def _arrays(batch: TrainBatch) -> dict[str, NDArray[Any]]:
    """Return the arrays of a batch that training reads, by name. Of the scores of single rewards these are the margins
    of pairs; the other scores, step rewards and metrics are left out."""
    rows = batch.trajectories
    named = {
        name: getattr(rows, name)
        for name in (*PER_ROW, *PER_TURN, *PER_TOKEN, *PER_ACTION, *LENGTHS)
    }
    if (routes := rows.tokens.read().routes) is not None:
        named[ROUTES] = routes
    if MARGIN in rows.rewards:
        named[MARGIN_COLUMN] = rows.rewards[MARGIN]
    named |= {COLUMN + name: batch.columns[name] for name in sorted(batch.columns)}
    if batch.teacher_top is not None:
        named |= {TOP_IDS: batch.teacher_top.token_ids, TOP_LOGPROBS: batch.teacher_top.logprobs}
    return named


def _trajectories(joined: Mapping[str, NDArray[Any]]) -> TrajectoryColumns:
    return TrajectoryColumns.from_tokens(
        TokenColumns(
            **{name: joined[name] for name in (*PER_TOKEN, *PER_ACTION)},
            token_offsets=_offsets(joined["num_tokens"]),
            action_offsets=_offsets(joined["num_actions"]),
            routes=joined.get(ROUTES),
        ),
        uid=joined["uid"],
        num_turns=joined["num_turns"],
        reward=joined["reward"],
        truncated=joined["truncated"],
        turn_actions=joined["turn_actions"],
        turn_rewards=joined["turn_rewards"],
        rewards={MARGIN: joined[MARGIN_COLUMN]} if MARGIN_COLUMN in joined else None,
    )


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), lengths.cumsum()])

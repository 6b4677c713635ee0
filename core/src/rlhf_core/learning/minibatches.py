"""Minibatches: a rollout batch cut into optimizer updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..batch.trajectory_columns import TrajectoryColumns
from ..contracts.backend import ROW_WEIGHTS, Normalizers, TopTokens, TrainBatch
from ..rng import generator_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """The data of one optimizer update."""

    batch: TrainBatch
    normalizers: Normalizers
    first: bool
    """True for the first update on a rollout batch, when the policy is still the old policy."""


def minibatches(
    batch: TrajectoryColumns,
    columns: Mapping[str, NDArray[np.float32]],
    *,
    teacher_top: TopTokens | None = None,
    per_epoch: int,
    epochs: int,
    max_actions: int,
    seed: int,
    step: int,
) -> Iterator[Minibatch]:
    """Yield the minibatches of one step.

    With one minibatch per epoch the rows keep their order; otherwise each inner epoch has a new order of episodes,
    drawn from (seed, step, epoch). The rows of an episode are in one minibatch, which counts it as one sequence: so
    an episode weighs as much cut into several rows as in one, whatever the aggregation. When filters left fewer
    episodes than planned, minibatches get smaller rather than fewer, so that the learning-rate schedule holds.

    Args:
        columns: (sum of A,) each.
        per_epoch: minibatches of an inner epoch.
        epochs: passes over the batch.
        max_actions: the longest response that the run allows.
    """
    first = True
    episode = batch.episode  # (B,)
    num_episodes = int(episode.max(initial=-1)) + 1
    if num_episodes < len(batch):
        columns = {**columns, ROW_WEIGHTS: row_weights(batch)}
    for epoch in range(epochs):
        order = np.arange(num_episodes)
        if per_epoch > 1:
            order = generator_of(seed, "minibatch", step, epoch).permutation(order)
        for part in np.array_split(order, per_epoch):
            if not len(part):
                continue
            rows = np.flatnonzero(np.isin(episode, part))
            totals = normalizers_of(batch.num_actions[rows], max_actions)
            yield Minibatch(
                batch=_select(batch, columns, teacher_top, rows),
                normalizers=replace(totals, num_sequences=len(part)),
                first=first,
            )
            first = False


def row_weights(batch: TrajectoryColumns) -> NDArray[np.float32]:
    """Return (sum of A,), at each action, the share of its row in all actions of its episode."""
    lengths = batch.num_actions  # (B,)
    of_episode = np.bincount(batch.episode, weights=lengths)[batch.episode]  # (B,)
    return np.repeat((lengths / of_episode).astype(np.float32), lengths)


def normalizers_of(num_actions: NDArray[np.int64], max_actions: int) -> Normalizers:
    """Return the totals of an update over sequences of one row each, with these numbers of actions."""
    return Normalizers(
        num_actions=int(num_actions.sum()),
        num_sequences=len(num_actions),
        max_actions=max_actions,
    )


def _select(
    batch: TrajectoryColumns,
    columns: Mapping[str, NDArray[np.float32]],
    teacher_top: TopTokens | None,
    rows: NDArray[np.int64],
) -> TrainBatch:
    if len(rows) == len(batch):
        return TrainBatch(trajectories=batch, columns=columns, teacher_top=teacher_top)
    actions = batch.action_index(rows)
    if teacher_top is not None:
        teacher_top = TopTokens(
            token_ids=teacher_top.token_ids[actions], logprobs=teacher_top.logprobs[actions]
        )
    return TrainBatch(
        trajectories=batch.select(rows),
        columns={name: column[actions] for name, column in columns.items()},
        teacher_top=teacher_top,
    )

"""How a rollout batch is cut into optimizer updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..contracts.backend import Normalizers, TrainBatch
from ..contracts.trajectory import TrajectoryColumns
from .rng import generator_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """The data of one optimizer update."""

    batch: TrainBatch
    normalizers: Normalizers
    first: bool
    """No update has been made on this rollout batch yet."""


def minibatches(
    batch: TrajectoryColumns,
    columns: Mapping[str, NDArray[np.float32]],
    *,
    per_epoch: int,
    epochs: int,
    max_actions: int,
    seed: int,
    step: int,
) -> Iterator[Minibatch]:
    """Yield the updates of one step.

    With one update the rows keep their order; otherwise each inner epoch has a new one, drawn from
    (seed, step, epoch). When filters left fewer sequences than planned, the updates get smaller rather than fewer, so
    that the learning-rate schedule holds.
    """
    first = True
    for epoch in range(epochs):
        rows = np.arange(len(batch))
        if per_epoch > 1:
            rows = generator_of(seed, "minibatch", step, epoch).permutation(rows)
        for part in np.array_split(rows, per_epoch):
            if not len(part):
                continue
            part = np.sort(part)
            yield Minibatch(
                batch=_select(batch, columns, part),
                normalizers=Normalizers(
                    num_actions=int(batch.num_actions[part].sum()),
                    num_sequences=len(part),
                    max_actions=max_actions,
                ),
                first=first,
            )
            first = False


def _select(
    batch: TrajectoryColumns,
    columns: Mapping[str, NDArray[np.float32]],
    rows: NDArray[np.int64],
) -> TrainBatch:
    if len(rows) == len(batch):
        return TrainBatch(trajectories=batch, columns=columns)
    actions = batch.action_index(rows)
    return TrainBatch(
        trajectories=batch.select(rows),
        columns={name: column[actions] for name, column in columns.items()},
    )

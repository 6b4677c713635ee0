"""Results of several passes, each over some rows, put in the order of the batch's actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core.contracts import Metrics, StepOutcome, StepPlan, TrainBatch, TrajectoryColumns
from rlhf_core.objective import ActionScores, RecordLosses

_ALL = slice(None)


class Pass(NamedTuple):
    """Results of one pass for the M actions of its rows."""

    rows: NDArray[np.int64]
    """Row numbers in the batch, in the order of the results."""
    results: tuple[Tensor, ...]
    """Results, (M, ...) each."""


def placed(batch: TrajectoryColumns, passes: Sequence[Pass]) -> list[NDArray[np.float32]]:
    """Return each result of the passes in the order of the batch's actions, (sum of A, ...), in float32; a pass without
    rows adds nothing.

    Args:
        passes: at least one: the first says how many results there are, and their widths. Each row of the batch is in
            exactly one pass.
    """
    total = int(batch.num_actions.sum())
    out = [np.empty((total, *part.shape[1:]), dtype=np.float32) for part in passes[0].results]
    for rows, results in passes:
        if not len(rows):
            continue
        index = batch.action_index(rows)
        for column, result in zip(out, results, strict=True):
            # float32 holds token ids exactly, up to 2^24 of them.
            column[index] = result.float().cpu().numpy()
    return out


def ids_of(batch: TrainBatch) -> list[NDArray[np.int32]]:
    """Return all token ids of an update: those of its sequences, and those that a teacher named."""
    rows = (batch.trajectories, batch.supervised)
    found = [one.token_ids for one in rows if one is not None]
    return found if batch.teacher_top is None else [*found, batch.teacher_top.token_ids]


class SeenScores:
    """The policy's log-probs, entropies and losses, or the numbers of a role's head, from the passes of one update,
    before it changes the weights: those that the update's plan asks for."""

    def __init__(self, batch: TrajectoryColumns, plan: StepPlan) -> None:
        self._batch = batch
        self._logprobs: list[Pass] | None = [] if plan.return_logprobs else None
        self._entropies: list[Pass] | None = [] if plan.return_entropies else None
        self._losses: list[Pass] | None = [] if plan.return_losses else None
        self._values: list[Pass] | None = [] if plan.return_values else None

    def add(self, rows: NDArray[np.int64], scores: ActionScores) -> None:
        """Keep what is wanted of the scores of one pass."""
        if self._logprobs is not None:
            self._logprobs.append(Pass(rows, (scores.logprobs.detach(),)))
        if self._entropies is not None:
            self._entropies.append(Pass(rows, (scores.entropies.detach(),)))

    def add_values(self, rows: NDArray[np.int64], values: Tensor) -> None:
        """Keep the numbers of the head from one pass, if they are wanted."""
        if self._values is not None:
            self._values.append(Pass(rows, (values.detach(),)))

    def recorder(self, rows: NDArray[np.int64]) -> RecordLosses | None:
        """Return what keeps the losses of one pass; None: they are not wanted."""
        losses = self._losses
        if losses is None:
            return None
        return lambda *numbers: losses.append(Pass(rows, numbers))

    def outcome(self, metrics: Metrics, own: slice = _ALL) -> StepOutcome:
        """Return the outcome of the update, with the columns that are wanted in the order of the batch; called once,
        after the last pass.

        Args:
            own: actions (sum of A,) of the batch that the outcome has.
        """

        def part(column: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
            return None if column is None else column[own]

        losses, clipped = self._losses_in_order()
        has_no_head = self._values == [] and len(self._batch) > 0
        return StepOutcome(
            metrics=metrics,
            logprobs=part(self._column(self._logprobs)),
            entropies=part(self._column(self._entropies)),
            losses=part(losses),
            clipped=part(clipped),
            values=None if has_no_head else part(self._column(self._values)),
        )

    def _losses_in_order(self) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """Return ``StepOutcome.losses`` and ``StepOutcome.clipped``; None each where no pass told them."""
        if self._losses == [] and not len(self._batch):  # of a rank without rows
            return np.empty(0, dtype=np.float32), np.empty(0, dtype=np.float32)
        if not self._losses:
            return None, None
        losses, clipped = placed(self._batch, self._losses)
        return losses, clipped

    def _column(self, passes: list[Pass] | None) -> NDArray[np.float32] | None:
        if passes is None:
            return None
        if not passes:
            return np.empty(int(self._batch.num_actions.sum()), dtype=np.float32)
        (column,) = placed(self._batch, passes)
        return column

"""Losses of the passes of an update: each the part that the rows of one pass have in the update's loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from rlhf_core.contracts import Metrics, StepPlan, TrainBatch, TrajectoryColumns
from rlhf_core.objective import (
    ActionColumns,
    ActionScores,
    BuiltObjective,
    BuiltPolicyObjective,
    BuiltScoreObjective,
    BuiltValueObjective,
)

from ..rows.batch_columns import SeenScores
from ..rows.packed_rows import PackedRows
from ..scoring.scoring_backend import RoleReader
from .passes import Rows, nothing


class LaidRows(Protocol):
    """Rows of a pass with M actions, of which this rank computes m; all of them unless ranks share sequences."""

    @property
    def packed(self) -> PackedRows:
        """Tokens, predictors and targets of this rank, with the grid of all M actions."""

    def own(self, column: Tensor) -> Tensor:
        """Return the entries (m, ...) of a column (M, ...) that belong to this rank's actions."""

    def whole(self, own: Tensor) -> Tensor:
        """Return the results (M, ...) of all actions for those (m, ...) of this rank."""

    def whole_scores(self, own: ActionScores) -> ActionScores:
        """Return the scores of all actions for those of this rank."""


LayOut = Callable[[TrajectoryColumns, Rows], LaidRows]


Find = Callable[[], tuple[Tensor, Metrics]]
"""``find()``: the objective's loss of the rows of a pass, and its metrics."""

Passes = Callable[[TrajectoryColumns, int], Sequence[Rows]]
"""``passes(columns, rows_per_unit)``: the rows of each pass over some columns."""


@dataclass(frozen=True, slots=True)
class UpdateLosses:
    """Losses of an update, each computed when it is called, and what they leave behind."""

    seen: SeenScores
    works: list[Callable[[], Tensor]] = field(default_factory=list)
    parts: list[Metrics] = field(default_factory=list)
    """Metrics of each pass, once its loss has been computed."""
    failures: list[Exception] = field(default_factory=list)
    """Errors of the objective on rows of this rank. The loss is 0 there, and the rank takes part in all passes."""

    def require_whole(self) -> None:
        """Raise the first of ``failures``, if there is one, once the gradient has been computed."""
        if self.failures:
            raise self.failures[0]


class PassLosses:
    """Computes the losses of one role.

    Args:
        lay_out: gives the rows of a pass as the model reads them.
        reports: whether the metrics of a pass are kept; ranks that compute the same rows have the same.
    """

    def __init__(
        self, objective: BuiltObjective, reader: RoleReader, lay_out: LayOut, *, reports: bool
    ) -> None:
        self._objective, self._reader = objective, reader
        self._lay_out, self._reports = lay_out, reports

    def of_update(self, batch: TrainBatch, plan: StepPlan, passes: Passes) -> UpdateLosses:
        """Return the losses of all passes of an update, over rollouts and then over supervised rows."""
        losses = UpdateLosses(SeenScores(batch.trajectories, plan))
        for rows in passes(batch.trajectories, self._objective.rows_per_unit):
            losses.works.append(partial(self._of_rollouts, batch, rows, plan, losses))
        if batch.supervised is not None:
            for rows in passes(batch.supervised, 1):
                work = partial(self._of_supervised, batch.supervised, rows, plan, losses)
                losses.works.append(work)
        return losses

    def _of_rollouts(
        self, batch: TrainBatch, rows: Rows, plan: StepPlan, losses: UpdateLosses
    ) -> Tensor:
        """Return the part of the update's loss that these rows have, and leave its metrics in ``losses``."""
        shared = self._lay_out(batch.trajectories, rows)
        objective = self._objective
        if isinstance(objective, BuiltValueObjective | BuiltScoreObjective):
            values = shared.whole(self._reader.values(shared.packed))
            if not len(rows):
                return nothing(values)
            columns = ActionColumns.of(batch, rows, shared.packed.grid)
            losses.seen.add_values(rows, values)
            find: Find = partial(objective.rollouts, values, columns, plan)
            outputs = values
        else:
            if not len(rows):
                return nothing(self._scores(shared).logprobs)
            columns = ActionColumns.of(batch, rows, shared.packed.grid)
            scores = self._scores(shared, columns.teacher_top_ids)
            losses.seen.add(rows, scores)
            if isinstance(objective, BuiltPolicyObjective):
                find = partial(
                    objective.rollouts, scores, columns, plan, losses.seen.recorder(rows)
                )
            else:
                find = partial(objective.rollouts, scores, columns, plan)
            outputs = scores.logprobs
        return self._loss(find, outputs, losses)

    def _of_supervised(
        self, batch: TrajectoryColumns, rows: Rows, plan: StepPlan, losses: UpdateLosses
    ) -> Tensor:
        """Return the part of the update's loss that these supervised rows have, and leave its metrics in ``losses``."""
        objective, totals = self._objective, plan.supervised_normalizers
        assert isinstance(objective, BuiltPolicyObjective)
        assert totals is not None
        shared = self._lay_out(batch, rows)
        scores = self._scores(shared)
        if not len(rows):
            return nothing(scores.logprobs)
        find = partial(objective.supervised, scores, shared.packed.grid, totals)
        return self._loss(find, scores.logprobs, losses)

    def _loss(self, find: Find, outputs: Tensor, losses: UpdateLosses) -> Tensor:
        """Return the loss that ``find`` returns, with the balance of experts, or none of ``outputs`` if it raises."""
        try:
            loss, metrics = find()
        except torch.OutOfMemoryError:
            raise  # smaller micro-batches may help
        except Exception as error:
            losses.failures.append(error)
            return nothing(outputs)
        if self._reports:
            losses.parts.append(metrics)
        return self._reader.with_balance(loss)

    def _scores(self, rows: LaidRows, others: Tensor | None = None) -> ActionScores:
        own = None if others is None else rows.own(others)
        return rows.whole_scores(self._reader.action_scores(rows.packed, own))

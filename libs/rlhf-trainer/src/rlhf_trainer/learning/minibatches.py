"""Minibatches: a rollout batch cut into optimizer updates, the columns that a loss computes over a whole one, and the
count of updates in a row that were skipped."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_core.batch.metric import Metrics, metric_values
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts import TopTokens, TrainBatch
from rlhf_core.contracts.backend import JUDGED, PREPARED, ROW_WEIGHTS, Normalizers
from rlhf_core.contracts.loss import PreparingLoss, StepColumns
from rlhf_core.errors import NonFiniteError, PluginError
from rlhf_core.math import pad_columns, unpad
from rlhf_core.rng import generator_of

log = logging.getLogger(__name__)


def minibatches(
    batch: TrajectoryColumns,
    *,
    per_epoch: int,
    epochs: int,
    seed: int,
    step: int,
    judged: NDArray[np.bool_] | None = None,
    left_out: NDArray[np.bool_] | None = None,
) -> list[NDArray[np.int64]]:
    """Return the numbers of the rows of each minibatch of one step.

    With one minibatch per epoch the rows keep their order; otherwise each inner epoch has a new order of episodes,
    drawn from (seed, step, epoch). The rows of an episode are in one minibatch, which counts it as one sequence: so
    an episode weighs as much cut into several rows as in one, whatever the aggregation. When filters left fewer
    episodes than planned, minibatches get smaller rather than fewer, so that the learning-rate schedule holds; of no
    episodes there are as many empty ones, for what else the updates hold.

    Args:
        per_epoch: minibatches of an inner epoch.
        epochs: passes over the batch.
        judged: (B,) True where the rewards of a row's episode count. The others are dealt out beside these, which are
            therefore in the minibatches that they would be in alone. None: all count.
        left_out: (B,) True where a row's episode is in no minibatch. If all are, there are no minibatches.
    """
    episode = batch.episode  # (B,)
    num_episodes = int(episode.max(initial=-1)) + 1
    trained = np.unique(episode if left_out is None else episode[~left_out])
    counted = trained if judged is None else np.intersect1d(trained, episode[judged])
    others = np.setdiff1d(trained, counted)
    found: list[NDArray[np.int64]] = []
    for epoch in range(epochs):
        orders = [counted, others]
        if per_epoch > 1:
            draw = generator_of(seed, "minibatch", step, epoch)
            orders = [draw.permutation(order) for order in orders]
        for part in zip(*(np.array_split(order, per_epoch) for order in orders), strict=True):
            episodes = np.concatenate(part)
            if len(episodes) or not num_episodes:
                found.append(np.flatnonzero(np.isin(episode, episodes)))
    return found


def step_data(
    batch: TrajectoryColumns,
    columns: Mapping[str, NDArray[np.float32]],
    teacher_top: TopTokens | None = None,
    judged: NDArray[np.bool_] | None = None,
) -> TrainBatch:
    """Return the data of all updates of a step, of which each has some rows.

    Args:
        columns: (sum of A,) each.
        judged: as in ``minibatches``.
    """
    if int(batch.episode.max(initial=-1)) + 1 < len(batch):
        columns = {**columns, ROW_WEIGHTS: row_weights(batch)}
    if judged is not None:
        columns = {**columns, JUDGED: np.repeat(judged, batch.num_actions).astype(np.float32)}
    return TrainBatch(trajectories=batch, columns=columns, teacher_top=teacher_top)


def row_weights(batch: TrajectoryColumns) -> NDArray[np.float32]:
    """Return (sum of A,), at each action, the share of its row in all actions of its episode."""
    lengths = batch.num_actions  # (B,)
    of_episode = np.bincount(batch.episode, weights=lengths)[batch.episode]  # (B,)
    return np.repeat((lengths / of_episode).astype(np.float32), lengths)


def normalizers_of(num_actions: NDArray[np.int64], max_actions: int) -> Normalizers:
    """Return the totals of an update over sequences of one row each, with these numbers of actions."""
    return Normalizers(
        num_actions=int(num_actions.sum()), num_sequences=len(num_actions), max_actions=max_actions
    )


def totals_of(batch: TrajectoryColumns, rows: NDArray[np.int64], max_actions: int) -> Normalizers:
    """Return the totals of an update over these rows of a batch, whose sequences are episodes."""
    found = normalizers_of(batch.num_actions[rows], max_actions)
    return replace(found, num_sequences=len(np.unique(batch.uid[rows, :3], axis=0)))


def of_rows(batch: TrainBatch, rows: NDArray[np.int64]) -> TrainBatch:
    """Return these rows of the data, in their order."""
    if len(rows) == len(batch.trajectories):
        return batch
    actions, top = batch.trajectories.action_index(rows), batch.teacher_top
    if top is not None:
        top = TopTokens(token_ids=top.token_ids[actions], logprobs=top.logprobs[actions])
    return TrainBatch(
        trajectories=batch.trajectories.select(rows),
        columns={name: column[actions] for name, column in batch.columns.items()},
        teacher_top=top,
    )


def prepare(loss: PreparingLoss, batch: TrainBatch, seed: int) -> dict[str, NDArray[np.float32]]:
    """Return the columns that ``loss`` prepares for a step, (sum of A,) each, under ``prepared/NAME``.

    Raises:
        PluginError: the loss returned a column that is not (B, A).
    """
    lengths = torch.from_numpy(batch.trajectories.num_actions)
    columns = {
        name: pad_columns(torch.from_numpy(np.ascontiguousarray(batch.columns[name])), lengths)
        for name in ("advantages", "old_logprobs", "rollout_logprobs")
        if name in batch.columns
    }
    values = {name: padded.values for name, padded in columns.items()}
    mask = columns["advantages"].mask
    prepared = loss.prepare(StepColumns(action_mask=mask, seed=seed, **values))
    for name, column in prepared.items():
        if column.shape != mask.shape:
            raise PluginError(
                f"{type(loss).__name__} prepared {name!r} of shape {tuple(column.shape)}; expected {tuple(mask.shape)}",
                code="plugin/wrong-shape",
            )
    return {
        PREPARED + name: unpad(column.detach().float(), mask).numpy()
        for name, column in prepared.items()
    }


def count_skipped(before: int, metrics: Metrics, *, role: str, limit: int, look_at: str) -> int:
    """Return how many updates of a role in a row were skipped, up to the one with these metrics; 0 if that one was not.

    Args:
        before: the number up to the update before.
        metrics: metrics of one update (``StepOutcome.metrics``).
        limit: the number that ends the run.
        look_at: the place where the cause may be seen, for the message.

    Raises:
        NonFiniteError: the number has reached ``limit``.
    """
    skipped = metrics.get("train/skipped_updates")
    if skipped is None or not skipped.value():
        return 0
    in_a_row = before + 1
    if in_a_row >= limit:
        raise NonFiniteError(
            f"{in_a_row} updates of the {role} in a row had a gradient that is not finite; its weights are those of "
            f"the last good update. {_origin(metrics)}Lower its learning rate, or look at {look_at}",
            code="training/gradient-not-finite",
        )
    skipping = "an update of the %s is skipped: its gradient is not finite. %s"
    log.warning(skipping, role, _origin(metrics))
    return in_a_row


def _origin(metrics: Metrics) -> str:
    """Return a sentence on the metrics that are not finite themselves: the loss among them whose name is a component's
    is where it began."""
    values = metric_values(metrics)
    found = sorted(name for name, value in values.items() if not math.isfinite(value))
    if not found:
        return ""
    are = "is" if len(found) == 1 else "are"
    return f"Of its metrics {', '.join(found)} {are} not finite either. "

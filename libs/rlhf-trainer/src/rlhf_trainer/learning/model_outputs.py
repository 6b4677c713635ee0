"""Outputs of the models for a batch: log-probs, values and statistics, all that its run demands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.token_columns import TokenColumns
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts.backend import Statistic, TopTokens
from rlhf_core.contracts.runtime import RoleHandle
from rlhf_core.errors import NonFiniteError

from .demands import Demands
from .roles import CRITIC, POLICY, REFERENCE, TEACHER

Columns = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutputs:
    """Columns that the models compute at the actions of a batch."""

    columns: Columns
    """(sum of A,) each, for the losses: log-probs by policy, and values."""
    sum_pi_squared: NDArray[np.float32] | None = None
    """(sum of A,)"""
    final_values: NDArray[np.float32] | None = None
    """(B,)"""
    teacher_top: TopTokens | None = None
    observed: Columns = field(default_factory=dict)
    """(sum of A,) each, for observers and ``algo.loss.top_entropy``: the entropy, where a pass computes it."""

    def of_rows(self, batch: TrajectoryColumns, rows: NDArray[np.int64]) -> ModelOutputs:
        """Return what an estimator reads of these rows of the batch."""
        actions, squares, final = batch.action_index(rows), self.sum_pi_squared, self.final_values
        return ModelOutputs(
            columns={name: column[actions] for name, column in self.columns.items()},
            sum_pi_squared=None if squares is None else squares[actions],
            final_values=None if final is None else final[rows],
        )


async def ask_models(
    batch: TrajectoryColumns, roles: Mapping[str, RoleHandle], demands: Demands
) -> ModelOutputs:
    """Return the outputs that this run demands of its models.

    Raises:
        NonFiniteError: a log-prob or a value is NaN or infinite; the message names the first sample.
    """
    columns: Columns = {}
    asked = np.repeat(has_logprobs(batch), batch.num_actions)
    require_finite(batch, "rollout_logprobs", np.where(asked, batch.rollout_logprobs, 0.0))
    if demands.rollout_logprobs:
        columns["rollout_logprobs"] = batch.rollout_logprobs
    statistics: dict[Statistic, NDArray[np.float32]] = {}
    if demands.old_statistics:
        statistics = await roles[POLICY].statistics(batch, demands.old_statistics)
    if demands.rollout_as_old:
        columns["old_logprobs"] = batch.rollout_logprobs
    elif "logprobs" in statistics:
        columns["old_logprobs"] = statistics["logprobs"]
    if demands.reference:
        # A role of its own or, without one, the policy as its adapter began.
        separate = roles.get(REFERENCE)
        asking = separate.logprobs if separate is not None else roles[POLICY].base_logprobs
        columns["ref_logprobs"] = await asking(batch)
    if demands.teacher_logprobs:
        columns["teacher_logprobs"] = await roles[TEACHER].logprobs(batch)
    if demands.critic:
        columns["values"] = await roles[CRITIC].values(batch)
    for name, column in columns.items():
        require_finite(batch, name, column)
    top = demands.teacher_top_k
    return ModelOutputs(
        columns=columns,
        sum_pi_squared=statistics.get("sum_pi_squared"),
        final_values=await final_values(batch, roles[CRITIC]) if demands.final_values else None,
        teacher_top=await roles[TEACHER].top_tokens(batch, top) if top else None,
        observed={name: column for name, column in statistics.items() if name == "entropy"},
    )


def has_logprobs(batch: TrajectoryColumns) -> NDArray[np.bool_]:
    """(B,) True where the sampler's log-probs are known; those that nobody asked the engine for are NaN."""
    so_far = np.concatenate([[0], np.cumsum(~np.isnan(batch.rollout_logprobs))])
    present: NDArray[np.bool_] = np.diff(so_far[batch.action_offsets]) > 0
    return present


async def final_values(batch: TrajectoryColumns, critic: RoleHandle) -> NDArray[np.float32]:
    """Return (B,) the value of the state after the last token of truncated rows; 0 for finished rows."""
    values = np.zeros(len(batch), dtype=np.float32)
    rows = np.flatnonzero(batch.truncated)
    if len(rows):
        values[rows] = await critic.values(one_more_action(batch.select(rows)))
    return values


def one_more_action(batch: TrajectoryColumns) -> TrajectoryColumns:
    """Return the batch with one more token in each row, which is the row's only action.

    "The value before that action" is then the value after the row. The token itself does not matter, because attention
    is causal: no earlier token sees it.
    """
    num_rows, columns = len(batch), batch.tokens.read()
    ends = columns.token_offsets[1:]
    offsets = np.arange(num_rows + 1, dtype=np.int64)
    nothing, one = np.zeros(num_rows, dtype=np.float32), np.ones(num_rows, dtype=np.int64)
    return TrajectoryColumns.from_tokens(
        TokenColumns(
            token_ids=np.insert(columns.token_ids, ends, columns.token_ids[ends - 1]),
            action_mask=np.insert(np.zeros_like(columns.action_mask), ends, True),
            token_offsets=columns.token_offsets + offsets,
            rollout_logprobs=nothing,
            weight_version=np.zeros(num_rows, dtype=np.int32),
            action_offsets=offsets,
        ),
        uid=batch.uid,
        num_turns=one,
        turn_actions=one,
        turn_rewards=nothing,
        reward=batch.reward,
        truncated=batch.truncated,
        num_media=batch.num_media,
        media=batch.media,
    )


def require_finite(batch: TrajectoryColumns, name: str, column: NDArray[np.float32]) -> None:
    """Refuse a column (sum of A,) that has NaN or infinity.

    Raises:
        NonFiniteError: names the first sample and action token.
    """
    bad = np.flatnonzero(~np.isfinite(column))
    if len(bad):
        row = int(np.searchsorted(batch.action_offsets, bad[0], side="right")) - 1
        uid = ".".join(map(str, batch.uid[row].tolist()))
        raise NonFiniteError(
            f"{name} of sample {uid} is {column[bad[0]]} at action token {bad[0] - batch.action_offsets[row]} "
            f"({len(bad)} such values in this batch); nothing was trained on it",
            code="training/value-not-finite",
        )

"""A micro-batch's actions on the device: where they stand in right-padded rows, their columns of values, what a policy
gives for them as a backend supplies it, and the sum of their losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Shaped
from numpy.typing import NDArray
from torch import Tensor

from ..batch.metric import Metric, Metrics
from ..contracts.backend import (
    JUDGED,
    MARGIN,
    PREPARED,
    ROW_WEIGHTS,
    TRAINED,
    Aggregation,
    Normalizers,
    TrainBatch,
)
from ..contracts.correction import Correction
from ..contracts.loss import LossInputs
from ..errors import PluginError
from ..math import aggregate, off_policy_mask


def on_device(array: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """Return the array of the host as a tensor on ``device``, without waiting for the device.

    A copy from ordinary memory to a GPU waits until the GPU has done all that it was asked for. The host could then
    never run ahead, and the GPU would be idle at the start of each micro-batch. A copy from pinned memory does not
    wait; torch keeps the pinned block until the copy is done. On the host the result shares memory with the array.
    """
    tensor = array if isinstance(array, Tensor) else torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionGrid:
    """The positions of ``M`` flat values in ``B`` right-padded rows of up to ``A`` actions.

    ``rlhf_core.math.pad_columns`` reads sizes from the device for each column, which makes the host wait; here the
    host knows the sizes already.
    """

    mask: Bool[Tensor, "b a"]
    """True at actions."""
    index: Int64[Tensor, " m"]
    """Position of each value in the flattened grid."""

    @classmethod
    def of(cls, num_actions: NDArray[np.int64], device: torch.device) -> ActionGrid:
        """Return the grid, on ``device``, of sequences with the given numbers of actions (B,)."""
        mask = np.arange(num_actions.max(initial=0)) < num_actions[:, None]  # (B, A)
        index = np.flatnonzero(mask)  # (M,)
        return cls(mask=on_device(mask, device), index=on_device(index, device))

    def pad(self, flat: Shaped[Tensor, "m ..."]) -> Shaped[Tensor, "b a ..."]:
        """Return the values (M, ...) as rows (B, A, ...) with 0 at padding; differentiable."""
        zeros = flat.new_zeros(self.mask.numel(), *flat.shape[1:])  # (B * A, ...)
        return zeros.index_copy(0, self.index, flat).view(*self.mask.shape, *flat.shape[1:])

    def last(self, flat: Shaped[Tensor, "m ..."]) -> Shaped[Tensor, "b ..."]:
        """Return the value (B, ...) at each row's last action; differentiable. Each row has an action."""
        return flat[self.mask.sum(dim=1).cumsum(dim=0) - 1]


TEACHER_TOP_IDS = "teacher_top_ids"
TEACHER_TOP_LOGPROBS = "teacher_top_logprobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionColumns:
    """The columns of some rows of a ``TrainBatch``, on the device of the grid."""

    flat: Mapping[str, Shaped[Tensor, "m ..."]]
    """Columns by their names in the batch; the teacher's most probable tokens are two columns (M, K)."""
    grid: ActionGrid
    rewards: Float[Tensor, " b"] | None = None
    """Reward of each row, on the host, as ``Trajectory.reward`` has it; None: the columns were made without a batch."""
    margins: Float[Tensor, " b"] | None = None
    """Margin of each row's pair, on the device; None: the batch has none."""

    @classmethod
    def of(cls, batch: TrainBatch, rows: NDArray[np.int64], grid: ActionGrid) -> ActionColumns:
        """Return the columns of the given rows.

        Args:
            rows: indices into the batch, in the order of the grid's rows.
            grid: grid of these rows' numbers of actions.
        """
        device = grid.mask.device
        index = batch.trajectories.action_index(rows)  # (M,)
        columns: dict[str, NDArray[np.float32]] = dict(batch.columns)
        if batch.teacher_top is not None:
            columns[TEACHER_TOP_LOGPROBS] = batch.teacher_top.logprobs
        flat = {name: on_device(column[index], device) for name, column in columns.items()}
        if batch.teacher_top is not None:
            ids = batch.teacher_top.token_ids[index].astype(np.int64)  # (M, K)
            flat[TEACHER_TOP_IDS] = on_device(ids, device)
        rewards = torch.from_numpy(batch.trajectories.reward[rows])
        margins = batch.trajectories.rewards.get(MARGIN)
        return cls(
            flat=flat,
            grid=grid,
            rewards=rewards,
            margins=None if margins is None else torch.from_numpy(margins[rows]).to(device),
        )

    @property
    def teacher_top_ids(self) -> Int64[Tensor, "m k"] | None:
        """Ids of the tokens whose log-probs a backend supplies as ``ActionScores.others``; None: it supplies none."""
        return self.flat.get(TEACHER_TOP_IDS)

    @property
    def row_weights(self) -> Float[Tensor, " b"] | None:
        """Share of each row in the actions of its episode; None: each row of the update is an episode."""
        if ROW_WEIGHTS not in self.flat:
            return None
        # All actions of a row hold its weight. A row without actions, or a micro-batch without any, has weight 0.
        return self.padded(ROW_WEIGHTS)[:, :1].sum(dim=1)

    @property
    def judged_rows(self) -> Int64[Tensor, " j"] | None:
        """Numbers of the rows whose rewards count; None: those of all rows do."""
        if JUDGED not in self.flat:
            return None
        return self.padded(JUDGED)[:, :1].sum(dim=1).nonzero()[:, 0]

    def padded(self, name: str) -> Shaped[Tensor, "b a ..."]:
        """Return a column as rows, with 0 at padding.

        Raises:
            PluginError: the batch came without the column.
        """
        if name not in self.flat:
            raise PluginError(
                f"this objective needs the column {name!r}; the batch has {', '.join(sorted(self.flat)) or 'none'}. "
                "The component that reads it must list it in its needs.",
                code="plugin/missing-column",
            )
        return self.grid.pad(self.flat[name])

    def optional(self, name: str) -> Shaped[Tensor, "b a ..."] | None:
        """Return a column as rows, with 0 at padding, or None where the batch came without it."""
        return self.padded(name) if name in self.flat else None

    def prepared(self) -> dict[str, Float[Tensor, "b a"]]:
        """Return the columns that the policy loss's own ``prepare`` made, by the names that it gave them."""
        return {
            name.removeprefix(PREPARED): self.padded(name)
            for name in self.flat
            if name.startswith(PREPARED)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionScores:
    """Log-probs and entropies of ``M`` actions in nats, at least float32, with gradients.

    All are of the distribution after the temperature (``RoleSpec.temperature``), in the order of the batch's rows and,
    within a row, of its actions.
    """

    logprobs: Float[Tensor, " m"]
    """Log-probability of each action."""
    entropies: Float[Tensor, " m"]
    """Entropy of the distribution that the action was drawn from."""
    others: Float[Tensor, "m k"] | None = None
    """Log-probs of the tokens ``ActionColumns.teacher_top_ids`` at the same positions, where there are such ids; after
    ``RoleSpec.top_temperature``."""
    mean_logprobs: Float[Tensor, " m"] | None = None
    """Mean log-probability over all ids that have one; supplied where the objective wants it
    (``PolicyComponents.wants_mean_logprobs``)."""


RowsT = TypeVar("RowsT", LossInputs, Correction)


def rows_of(columns: RowsT, rows: Int64[Tensor, " j"]) -> RowsT:
    """Return these rows of every column."""
    chosen: dict[str, Any] = {}
    for each in fields(columns):
        value = getattr(columns, each.name)
        if isinstance(value, Tensor):
            chosen[each.name] = value[rows]
        elif isinstance(value, Mapping) and each.name != "metrics":  # those are of all rows
            chosen[each.name] = {name: column[rows] for name, column in value.items()}
    return replace(columns, **chosen)


def corrected(
    token_loss: Float[Tensor, "b a"], correction: Correction | None, *, weighted: bool
) -> Float[Tensor, "b a"]:
    """Return ``w_t keep_t l_t``. A dropped token counts in the normalizer all the same.

    Args:
        weighted: True: the loss has multiplied itself by the weights already.
    """
    if correction is None:
        return token_loss
    if not weighted:
        token_loss = token_loss * correction.weights
    # where(), not multiplication: 0 * nan is nan, and the loss of a dropped token may be nan.
    return torch.where(correction.keep, token_loss, 0.0)


TRAINED_TOKENS = "policy/trained_tokens"
OFF_POLICY_TOKENS = "policy/off_policy_tokens"
"""Names of the metrics of ``trained_part``."""


def trained_part(
    token_loss: Float[Tensor, "j a"],
    inputs: LossInputs,
    columns: ActionColumns,
    max_log_ratio: float | None,
) -> tuple[Float[Tensor, "j a"], Metrics]:
    """Return the losses with 0, and no gradient, at the actions that the policy loss leaves out: those that the column
    ``TRAINED`` does, and those of ``PolicyObjective.off_policy_mask``. Where there is neither, the losses are returned
    as they are.

    The metrics are the share of action tokens that the column leaves in, and the share that the mask takes out.

    Args:
        token_loss: losses of the rows whose rewards count.
        inputs: those of these rows.
        columns: those of all rows of the micro-batch.
        max_log_ratio: ``PolicyObjective.off_policy_mask``.

    Raises:
        PluginError: the batch came without the sampler's log-probs, and the mask compares with them.
    """
    trained, rows, mask = columns.optional(TRAINED), columns.judged_rows, inputs.action_mask
    kept, metrics, count = mask, dict[str, Metric](), mask.sum()
    if trained is not None:
        kept = kept & ((trained if rows is None else trained[rows]) > 0.5)  # (J, A)
        metrics[TRAINED_TOKENS] = Metric(kept.sum(), count)
    if max_log_ratio is not None:
        sampled = columns.padded("rollout_logprobs")  # (B, A)
        near = off_policy_mask(
            inputs.policy_logprobs,
            sampled if rows is None else sampled[rows],
            inputs.advantages,
            mask,
            threshold=max_log_ratio,
        )
        kept = kept & near
        metrics[OFF_POLICY_TOKENS] = Metric((mask & ~near).sum(), count)
    # where(), not multiplication: 0 * nan is nan, and the loss of an action that is left out may be nan.
    return torch.where(kept, token_loss, 0.0) if metrics else token_loss, metrics


def reduced(
    token_loss: Float[Tensor, "b a"],
    mask: Bool[Tensor, "b a"],
    aggregation: Aggregation,
    totals: Normalizers,
    row_weights: Float[Tensor, " b"] | None = None,
) -> Float[Tensor, ""]:
    """Return this micro-batch's share of the step's loss; see ``rlhf_core.math.aggregate`` for the divisors.

    Args:
        totals: totals of the whole optimizer step, all ranks included.
        row_weights: share of each row in the actions of its episode; None: each row is an episode.
    """
    share: Float[Tensor, ""] = aggregate(
        token_loss,
        mask,
        aggregation,
        num_actions=totals.num_actions,
        num_sequences=totals.num_sequences,
        max_actions=totals.max_actions,
        row_weights=row_weights,
    )
    return share

"""The columns of a micro-batch's actions, and how a loss per token becomes a part of the step's loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf_core import PluginError
from rlhf_core.contracts import Aggregation, Metric, Normalizers
from rlhf_core.math import aggregate

from ..rows.packed_rows import ActionGrid


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionColumns:
    """The columns of one micro-batch's actions, (M,) or (M, K) each, and their place in (b, A)."""

    flat: Mapping[str, Tensor]
    grid: ActionGrid

    def padded(self, name: str) -> Tensor:
        """Return a column as (b, A) or (b, A, K).

        Raises:
            PluginError: the step came without it.
        """
        if name not in self.flat:
            raise PluginError(
                f"this objective needs the column {name!r}; the batch has {', '.join(sorted(self.flat)) or 'none'}. "
                "The component that reads it must list it in its needs."
            )
        return self.grid.pad(self.flat[name])

    def optional(self, name: str) -> Tensor | None:
        """Return a column as (b, A) or (b, A, K), or None."""
        return self.padded(name) if name in self.flat else None


def reduced(
    token_loss: Tensor, mask: Tensor, aggregation: Aggregation, totals: Normalizers
) -> Tensor:
    """Return this micro-batch's share of the step's loss."""
    scalar: Tensor = aggregate(
        token_loss,
        mask,
        aggregation,
        num_actions=totals.num_actions,
        num_sequences=totals.num_sequences,
        max_actions=totals.max_actions,
    )
    return scalar


def mean_metric(values: Tensor, mask: Tensor) -> Metric:
    """Return the mean over action tokens, mergeable over micro-batches."""
    return Metric(torch.where(mask, values, 0.0).sum(), mask.sum())

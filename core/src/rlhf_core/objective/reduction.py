"""From losses per token to this micro-batch's part of the step's loss and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..batch.metric import Metric, Metrics, merge_metrics
from ..contracts.backend import Aggregation, Normalizers
from ..math import aggregate


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


@dataclass(slots=True)
class LossParts:
    """The sum of a loss's terms, and each term as a metric."""

    total: Float[Tensor, ""]
    """The sum so far, with its gradient."""
    metrics: Metrics = field(default_factory=dict)

    def add(self, name: str, part: Float[Tensor, ""], coef: float) -> None:
        """Add ``coef`` times a term's part of the loss; the part is logged as it is, without its coefficient."""
        self.total = self.total + coef * part
        self.metrics[name] = loss_metric(part)


def loss_metric(part: Float[Tensor, ""]) -> Metric:
    """Return a part of the step's loss as a metric: the parts of all micro-batches and ranks add up to the loss."""
    return Metric(part.detach(), reduction="share")


def mean_metric(values: Float[Tensor, "b a"], mask: Bool[Tensor, "b a"]) -> Metric:
    """Return the mean of ``values``, which have no gradient, over action tokens; it merges over micro-batches."""
    return Metric(torch.where(mask, values, 0.0).sum(), mask.sum())


def read_metrics(parts: Sequence[Mapping[str, Metric]]) -> Metrics:
    """Merge the metrics of a step's micro-batches into plain numbers, waiting for the device once.

    A read per metric and micro-batch would stop the host from running ahead of the device each time.
    """
    numbers = [
        number
        for part in parts
        for metric in part.values()
        for number in (metric.total, metric.count)
    ]
    remote = [number for number in numbers if _is_remote(number)]
    read = iter(
        torch.stack([number.detach().double() for number in remote]).tolist() if remote else ()
    )
    plain = iter([next(read) if _is_remote(number) else _plain(number) for number in numbers])
    return merge_metrics(
        {name: Metric(next(plain), next(plain), metric.reduction) for name, metric in part.items()}
        for part in parts
    )


# Any: a metric may hold a number of Python, NumPy or torch.
def _is_remote(number: Any) -> bool:
    return isinstance(number, Tensor) and number.device.type != "cpu"


def _plain(number: Any) -> Any:
    return number.item() if isinstance(number, Tensor) else number

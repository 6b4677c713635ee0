"""Metrics: numbers whose parts from micro-batches, ranks and updates combine to the number of the whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..lazy import Bool, Float, torch

Reduction = Literal["mean", "share", "sum", "max", "min", "last"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A partial value, and the reduction by which partial values combine.

    - ``mean`` adds totals and counts and divides once at the end, so the result does not depend on how the samples were
      cut.
    - ``share`` is a part of one number of an optimizer update, such as its loss: the shares of micro-batches and ranks
      add up to that number, and a step of several updates has the mean over them (``of_update``).
    - ``sum`` adds totals, over micro-batches, ranks and updates alike.
    - ``max`` and ``min`` keep the larger and the smaller total, ``last`` the later one.

    ``total`` and ``count`` may be 0-d tensors, which are read once per update, not per micro-batch.
    """

    total: Any
    """Sum of the parts, or the number itself, by ``reduction``."""
    count: Any = 1.0
    """Divisor of a mean: the number of things, or the sum of their weights."""
    reduction: Reduction = "mean"
    """Rule by which two partial values become one, see above."""

    def merge(self, other: Metric) -> Metric:
        """Return the metric of both parts together; a ValueError if their reductions differ."""
        if self.reduction != other.reduction:
            raise ValueError(
                f"cannot merge a {self.reduction} metric with a {other.reduction} metric"
            )
        match self.reduction:
            case "mean" | "share" | "sum":
                return Metric(self.total + other.total, self.count + other.count, self.reduction)
            case "max":
                return self if float(self.total) >= float(other.total) else other
            case "min":
                return self if float(self.total) <= float(other.total) else other
            case "last":
                return other

    def of_update(self) -> Metric:
        """Return the metric as one that merges with those of other updates: a share, now complete, becomes a mean."""
        return Metric(self.total) if self.reduction == "share" else self

    def value(self) -> float | None:
        """Return the number, or None for a mean over nothing."""
        if self.reduction != "mean":
            return float(self.total)
        count = float(self.count)
        return float(self.total) / count if count else None


Metrics = dict[str, Metric]


def merge_metrics(parts: Iterable[Mapping[str, Metric]]) -> Metrics:
    """Return the metrics of all parts, merged by name as their reductions say.

    Raises:
        ValueError: two parts have metrics of one name and different reductions.
    """
    merged: Metrics = {}
    for part in parts:
        for name, metric in part.items():
            merged[name] = merged[name].merge(metric) if name in merged else metric
    return merged


def merge_updates(updates: Iterable[Mapping[str, Metric]]) -> Metrics:
    """Merge the metrics of several updates by name; those of one update are merged over micro-batches and ranks."""
    return merge_metrics(
        {name: metric.of_update() for name, metric in update.items()} for update in updates
    )


def metric_values(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """Return a number for each metric, ``total / count`` for a mean, else ``total``; leave out means over nothing."""
    values = ((name, metric.value()) for name, metric in metrics.items())
    return {name: value for name, value in values if value is not None}


def loss_metric(part: Float[torch.Tensor, ""]) -> Metric:
    """Return a part of the step's loss as a metric: the parts of all micro-batches and ranks add up to the loss."""
    return Metric(part.detach(), reduction="share")


def mean_metric(values: Float[torch.Tensor, "b a"], mask: Bool[torch.Tensor, "b a"]) -> Metric:
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
    return isinstance(number, torch.Tensor) and number.device.type != "cpu"


def _plain(number: Any) -> Any:
    return number.item() if isinstance(number, torch.Tensor) else number

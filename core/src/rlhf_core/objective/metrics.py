"""Metrics of a step: means over its action tokens, and one read from the device for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..batch.metric import Metric, Metrics, merge_metrics


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

"""Metrics of one optimizer update, from those of its micro-batches and those of the updater."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from rlhf_core.contracts import Metric, Metrics, TrainBatch
from rlhf_core.objective import read_metrics

from ..experts.routing import Routing


def update_metrics(
    role: str,
    batch: TrainBatch,
    parts: Sequence[Metrics],
    update: Metrics,
    routing: Routing | None,
    *,
    sum_: Callable[[list[Tensor]], None] | None = None,
    is_first: bool = True,
) -> Metrics:
    """Return the metrics of a role's update as plain numbers, this rank's share of them.

    Args:
        parts: metrics of each micro-batch.
        update: metrics of the updater, which get the role's name; those of experts come from ``routing``.
        sum_: replaces tensors by their sums over ranks; a collective call where there are experts.
        is_first: whether this rank reports the skipped update, which all ranks know and the runtime sums.
    """
    last: Metrics = {
        "train/tokens": Metric(int(batch.trajectories.num_tokens.sum()), reduction="sum"),
        "train/micro_batches": Metric(len(parts), reduction="sum"),
    }
    for name, metric in update.items():
        if name != "skipped":
            last[f"{role}/{name}"] = metric
        elif is_first:
            last["train/skipped_updates"] = metric
    if routing is not None:
        last |= routing.metrics(sum_)
    return read_metrics([*parts, last])

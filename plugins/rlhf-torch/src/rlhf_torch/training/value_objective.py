"""What the critic minimises on one micro-batch."""

from __future__ import annotations

from torch import Tensor

from rlhf_core.contracts import Metric, Metrics, StepPlan, ValueObjective
from rlhf_core.math import value_loss

from .action_columns import ActionColumns, mean_metric, reduced


def value_objective(
    objective: ValueObjective, values: Tensor, columns: ActionColumns, plan: StepPlan
) -> tuple[Tensor, Metrics]:
    """Return this micro-batch's part of the critic's loss; ``values`` (M,) have the gradient."""
    new, mask = columns.grid.pad(values), columns.grid.mask  # (b, A)
    old, returns = columns.padded("values"), columns.padded("returns")
    token_loss = value_loss(new, old, returns, objective.value_clip)
    total = reduced(token_loss, mask, objective.aggregation, plan.normalizers)
    return total, {
        "critic/loss": Metric(total.detach(), reduction="share"),
        "critic/value_mean": mean_metric(new.detach(), mask),
        "critic/return_mean": mean_metric(returns, mask),
        "critic/abs_error": mean_metric((new.detach() - returns).abs(), mask),
    }

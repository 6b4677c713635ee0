"""The critic's loss on one micro-batch."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ..batch.metric import Metrics, loss_metric, mean_metric
from ..contracts.backend import StepPlan, ValueObjective
from ..math import value_loss
from .columns import ActionColumns, reduced


def value_objective(
    objective: ValueObjective, values: Float[Tensor, " m"], columns: ActionColumns, plan: StepPlan
) -> tuple[Float[Tensor, ""], Metrics]:
    """Return this micro-batch's part of the step's loss, to be minimized, and its metrics.

    ``loss = sum n_t max((V_t - G_t)^2, (V_old_t + clip(V_t - V_old_t) - G_t)^2) / 2`` over the action tokens t, with
    the weight ``n_t`` of the aggregation as in ``policy_objective``; see ``rlhf_core.math.value_loss``.

    Args:
        values: the critic's values (M,) of the state before each action, with gradients.
        columns: ``values``, which are the critic's before the batch's updates, and ``returns``.

    Raises:
        PluginError: a column is missing.
    """
    new, mask = columns.grid.pad(values), columns.grid.mask  # (B, A)
    old, returns = columns.padded("values"), columns.padded("returns")  # (B, A)
    token_loss = value_loss(new, old, returns, objective.value_clip)  # (B, A)
    loss = reduced(token_loss, mask, objective.aggregation, plan.normalizers, columns.row_weights)
    return loss, {
        "critic/loss": loss_metric(loss),
        "critic/value_mean": mean_metric(new.detach(), mask),
        "critic/return_mean": mean_metric(returns, mask),
        "critic/abs_error": mean_metric((new.detach() - returns).abs(), mask),
    }

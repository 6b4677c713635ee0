"""Updates in a row that were skipped, because the gradient was not finite: too many end the run."""

from __future__ import annotations

import math

from rlhf_core.batch.metric import Metrics, metric_values
from rlhf_core.errors import NonFiniteError


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
            f"the last good update. {_origin(metrics)}Lower its learning rate, or look at {look_at}"
        )
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

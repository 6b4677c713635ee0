"""From losses per token to this micro-batch's part of the step's loss."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxtyping import Bool, Float
from torch import Tensor

from ..batch.metric import Metric, Metrics
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

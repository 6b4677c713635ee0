"""A policy's results for the actions of a micro-batch, as a backend supplies them."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


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

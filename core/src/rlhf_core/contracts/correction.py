"""Importance-sampling corrections between the sampler's policy and the trainer's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..batch.metric import Metrics

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Weights for the samples of another policy. No gradient flows through any field."""

    weights: Float[Tensor, "b a"]
    """Factors of the token losses."""
    keep: Bool[Tensor, "b a"]
    """False drops the token from the loss; it still counts in the normalizers."""
    metrics: Metrics = field(default_factory=dict)
    """Metrics of the correction, by name."""


@runtime_checkable
class IsCorrection(Protocol):
    """Weighs tokens by how probable the trainer's policy finds them compared with the sampler's.

    Equal log-probs must give weight 1 everywhere.
    """

    def __call__(
        self,
        old_logprobs: Float[Tensor, "b a"],
        rollout_logprobs: Float[Tensor, "b a"],
        action_mask: Bool[Tensor, "b a"],
    ) -> Correction: ...

"""Policy losses: a loss per action token. Reduction and normalisation are the core's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from .metric import Metrics

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """One micro-batch, action tokens only, right-padded. Values at padding are undefined (they may be NaN)."""

    policy_logprobs: Float[Tensor, "b a"]
    """Of the policy being trained, after the sampling temperature; the only field with a gradient."""
    old_logprobs: Float[Tensor, "b a"]
    """Of the policy at the start of this rollout batch's updates. Before the first update they *are* the policy's,
    to the bit, so the ratio is exactly 1."""
    advantages: Float[Tensor, "b a"]
    action_mask: Bool[Tensor, "b a"]
    rollout_logprobs: Float[Tensor, "b a"] | None = None
    """Of the sampler; given to components that need ``rollout_logprobs``."""
    ref_logprobs: Float[Tensor, "b a"] | None = None
    is_weights: Float[Tensor, "b a"] | None = None
    """Weights of an importance-sampling correction. The core has already put them on the loss that it
    aggregates, unless the component declares that it applies them itself (provides ``applies_is_weights``)."""
    entropy: Float[Tensor, "b a"] | None = None
    """Of the policy's distribution at each action; given to components that need ``entropy``. No gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """An unreduced loss."""

    loss: Float[Tensor, "b a"]
    """To be minimised. Whatever stands at padding is ignored."""
    metrics: Metrics = field(default_factory=dict)


class PolicyLoss(Protocol):
    """Must give finite gradients for finite inputs, and none to padding."""

    def __call__(self, inputs: LossInputs) -> TokenLoss: ...

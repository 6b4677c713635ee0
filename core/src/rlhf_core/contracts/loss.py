"""Policy losses: a loss per action token. The core reduces and normalizes it (``rlhf_core.objective``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..batch.metric import Metrics

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """One micro-batch, action tokens only, right-padded. Values at padding are undefined (they may be NaN)."""

    policy_logprobs: Float[Tensor, "b a"]
    """Log-probs under the policy being trained, after the sampling temperature. Only this field,
    ``policy_top_logprobs`` and ``mean_logprobs`` have a gradient."""
    old_logprobs: Float[Tensor, "b a"]
    """Log-probs under the policy at the start of this rollout batch's updates. Before the first update they *are* the
    policy's, to the bit, so the ratio is exactly 1."""
    advantages: Float[Tensor, "b a"]
    """Advantage of each action token, as the estimator gave it."""
    action_mask: Bool[Tensor, "b a"]
    """True at action tokens, False at padding."""
    rollout_logprobs: Float[Tensor, "b a"] | None = None
    """Log-probs under the sampler; given to components that need ``rollout_logprobs``."""
    ref_logprobs: Float[Tensor, "b a"] | None = None
    """Log-probs under the reference; given to components that need ``ref_logprobs``."""
    is_weights: Float[Tensor, "b a"] | None = None
    """Weights of an importance-sampling correction. The core multiplies the loss by them before it aggregates, unless
    the component declares that it applies them itself (provides ``applies_is_weights``)."""
    entropy: Float[Tensor, "b a"] | None = None
    """Entropy (nats) of the policy's distribution at each action; given to components that need ``entropy``. No
    gradient."""
    teacher_logprobs: Float[Tensor, "b a"] | None = None
    """Log-probs of the actions under the teacher; given to components that need ``teacher_logprobs``."""
    teacher_top_logprobs: Float[Tensor, "b a k"] | None = None
    """Log-probs under the teacher of its own k most probable tokens at each position, highest first; given to
    components that need ``teacher_top_k``."""
    policy_top_logprobs: Float[Tensor, "b a k"] | None = None
    """Log-probs of the same tokens under the policy being trained, with a gradient."""
    mean_logprobs: Float[Tensor, "b a"] | None = None
    """Mean over the vocabulary of the log-probs under the policy being trained, with a gradient; given to components
    that need ``mean_logprobs``. Ids without a probability do not count."""
    prepared: Mapping[str, Float[Tensor, "b a"]] = field(default_factory=dict)
    """Columns that the component's own ``prepare`` returned, of these rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """An unreduced loss."""

    loss: Float[Tensor, "b a"]
    """Loss of each action token, minimized. Values at padding are ignored."""
    metrics: Metrics = field(default_factory=dict)
    """Metrics of the loss, by name, over the tokens of this micro-batch."""


@runtime_checkable
class PolicyLoss(Protocol):
    """A loss per action token. It must give finite gradients for finite inputs, and none to padding.

    A loss that may train on samples of an older policy, because its gradient has the ratio to ``old_logprobs`` or is
    right whoever wrote the sample, has a component that provides ``off_policy``.

    Rows are whole in every micro-batch, so a loss may look at all tokens of a row, but never at other rows: a step
    must not depend on how it is cut. A loss that has to know all rows is a ``PreparingLoss``.
    """

    def __call__(self, inputs: LossInputs) -> TokenLoss: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """All rows of one optimizer step, before it is cut into micro-batches."""

    advantages: Float[Tensor, "b a"]
    """Advantage of each action token, as the estimator gave it."""
    action_mask: Bool[Tensor, "b a"]
    """True at action tokens, False at padding."""
    old_logprobs: Float[Tensor, "b a"] | None = None
    """Given to components that need ``old_logprobs``."""
    rollout_logprobs: Float[Tensor, "b a"] | None = None
    """Given to components that need ``rollout_logprobs``."""
    seed: int = 0
    """Seed of random draws; a function of the run's seed and the update."""


@runtime_checkable
class PreparingLoss(PolicyLoss, Protocol):
    """A loss that looks at the whole optimizer step first, such as one that picks the tokens with the largest
    covariance. Its component provides ``prepares_step``."""

    def prepare(self, step: StepColumns) -> Mapping[str, Float[Tensor, "b a"]]:
        """Return columns that ``LossInputs.prepared`` holds for the rows of each micro-batch."""

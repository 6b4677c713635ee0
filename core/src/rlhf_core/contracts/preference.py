"""Preference losses: a loss per pair of answers, or per answer. The caller averages over the whole optimizer update.

Axes: ``c`` chosen answers, ``r`` rejected answers, ``n`` answers of either kind, ``u`` units. A unit is a pair, chosen
and rejected answer of one prompt; for a loss that provides ``unpaired_answers`` it is an answer by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..batch.metric import Metrics
from ..errors import PluginError

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLogprobs:
    """Log-probs of whole answers: sums over their tokens, the end of the turn included and the prompt not, in nats."""

    policy: Float[Tensor, " n"]
    """Log-prob of each answer under the policy being trained. Only this field has a gradient."""
    reference: Float[Tensor, " n"] | None = None
    """Log-prob of each answer under the reference; given to components that need ``ref_logprobs``."""
    num_tokens: Int[Tensor, " n"]
    """Number of tokens that the sums are over, at least 1."""

    @property
    def log_ratio(self) -> Float[Tensor, " n"]:
        """Log-ratio ``policy - reference`` of each answer, in nats, with a gradient to the policy alone.

        Raises:
            PluginError: there is no reference, because the component does not declare that it needs one.
        """
        if self.reference is None:
            raise PluginError(
                "expected log-probs under the reference, got None; "
                "a component that reads them declares needs={'ref_logprobs'}"
            )
        return self.policy - self.reference.detach()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceInputs:
    """The answers of one micro-batch.

    For a loss on pairs both fields have as many rows, and row i of both answers the same prompt. A loss that provides
    ``unpaired_answers`` gets any number of each, also none.
    """

    chosen: AnswerLogprobs
    """Answers that were preferred, or found desirable."""
    rejected: AnswerLogprobs
    """The rejected answers, row by row beside ``chosen``."""
    mismatched_kl: Float[Tensor, ""] | None = None
    """Mean of ``policy - reference`` over answers beside the prompts of others, in nats: over the answers of the whole
    optimizer update, so that it is the same in all of its micro-batches. No gradient, and not clamped: the estimate may
    be negative. Given to components that need ``mismatched_kl``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceResult:
    """An unreduced loss, and the implicit rewards."""

    loss: Float[Tensor, " u"]
    """Loss of each unit, minimized: of each pair, or of each answer, chosen ones first."""
    chosen_rewards: Float[Tensor, " c"]
    """Implicit reward of each chosen answer, such as ``beta * log_ratio``. No gradient. The caller makes metrics of the
    rewards: their means, and how often the chosen answer's is the higher one."""
    rejected_rewards: Float[Tensor, " r"]
    """The same for each rejected answer."""
    metrics: Metrics = field(default_factory=dict)
    """Means and sums over the pairs."""


@runtime_checkable
class PreferenceLoss(Protocol):
    """A loss per unit. It must give finite losses and gradients for finite inputs.

    The caller sums the losses of a micro-batch and divides by the number of units of the whole optimizer update. A loss
    must therefore never look at other rows than the unit's own, except through ``mismatched_kl``: a step must not
    depend on how it is cut. No gradient flows to the reference or to ``mismatched_kl``, even where they carry one:
    ``AnswerLogprobs.log_ratio`` sees to the former.

    Losses and rewards have the dtype of the log-probs.
    """

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult: ...

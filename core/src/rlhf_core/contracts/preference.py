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
    """Log-probs of whole answers: sums over their tokens, the end of the turn included and the prompt not, in nats.
    With ``ANSWER_WEIGHTS`` they are weighted sums."""

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
                "a component that reads them declares needs={'ref_logprobs'}",
                code="plugin/no-ref-logprobs",
            )
        return self.policy - self.reference.detach()


ANSWER_WEIGHTS = "answer_weights"
"""Name of the column of a ``TrainBatch`` with the weight of each token's log-prob in that of its whole answer, under
the policy and under the reference. Without it all weights are 1."""

PAIR_WEIGHTS = "pair_weights"
"""Name of the column of a ``TrainBatch`` with the weight of each pair's loss: both rows of a pair hold it everywhere.
The weights do not change the number of units that divides. Without it all weights are 1."""

MATCHED = "matched/"
"""Prefix of the columns of a ``TrainBatch`` with ``MatchedPairs``: both rows of a pair hold its numbers everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedPairs:
    """Numbers of a pair's own rank among all pairs of the optimizer update, by the weights before it, in nats."""

    reference_margin: Float[Tensor, " n"]
    """The reference's ``log-prob(chosen) - log-prob(rejected)`` that has the rank which the pair's difference
    has among the policy's."""
    rejected_log_ratio: Float[Tensor, " n"]
    """The log-ratio of the rejected answer with the rank of the pair's chosen answer among the chosen ones."""
    chosen_log_ratio: Float[Tensor, " n"]
    """The log-ratio of the chosen answer with the rank of the pair's rejected answer among the rejected ones."""

    @classmethod
    def of(cls, chosen: AnswerLogprobs, rejected: AnswerLogprobs) -> MatchedPairs:
        """Match all pairs of an update; of equal numbers the pair that comes first has the lower rank.

        Raises:
            PluginError: there is no reference.
        """
        gains, losses = chosen.log_ratio.detach(), rejected.log_ratio.detach()
        assert chosen.reference is not None
        assert rejected.reference is not None
        policy = (chosen.policy - rejected.policy).detach()
        reference = (chosen.reference - rejected.reference).detach()
        return cls(
            reference_margin=_at_ranks_of(policy, reference),
            rejected_log_ratio=_at_ranks_of(gains, losses),
            chosen_log_ratio=_at_ranks_of(losses, gains),
        )


def _at_ranks_of(values: Float[Tensor, " n"], others: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return for each value the one of the others that has its rank."""
    ranks = values.argsort(stable=True).argsort()
    return others.sort().values[ranks]


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
    matched: MatchedPairs | None = None
    """Numbers matched with each pair, over the whole optimizer update. Given to losses on pairs that need
    ``matched_pairs``."""


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
    must therefore never look at other rows than the unit's own, except through ``mismatched_kl`` and ``matched``: a
    step must not depend on how it is cut. No gradient flows to the reference, to ``mismatched_kl`` or to ``matched``,
    even where they carry one: ``AnswerLogprobs.log_ratio`` sees to the first.

    Losses and rewards have the dtype of the log-probs.
    """

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult: ...

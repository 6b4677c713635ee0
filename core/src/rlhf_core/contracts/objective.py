"""Objectives: what a role may be trained for, as plain values that name the components of its loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ..capabilities import UNPAIRED_ANSWERS
from ..component import ComponentRef

if TYPE_CHECKING:
    from ..plugins import Plugins

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
"""Reduction of token losses to one number over an optimizer step; ``math.aggregate`` has the formulas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerm:
    """A further loss in addition to the policy loss, with its own weight and aggregation."""

    loss: ComponentRef
    """The loss, as a policy loss is named."""
    weight: float
    """Factor of the term, above 0."""
    aggregation: Aggregation
    """Way from its token losses to one number."""
    rows: Literal["rollouts", "supervised"] = "rollouts"
    """The sequences of the step that the loss is computed on."""


class Objective:
    """Base of everything that a role may be trained for. A kind of training that has another objective derives its own,
    with what it needs as plain values: it crosses process boundaries in the role's spec."""

    __slots__ = ()

    builder: ClassVar[str]
    """``module:callable``, which takes the objective and ``Plugins`` and returns what a backend descends, one of
    ``rlhf_core.objective``'s ``Built...Objective``."""

    def rows_per_unit(self, plugins: Plugins) -> int:
        """Return the number of neighboring rows that stay together, on one rank and in one micro-batch.

        Raises:
            UnknownComponent: no plugin provides a component that the objective names.
        """
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObjective(Objective):
    """The policy's objective: policy loss + kl_coef * KL to the reference - entropy_coef * entropy + further terms."""

    builder: ClassVar[str] = "rlhf_core.objective.built:policy"

    loss: ComponentRef
    """The policy loss."""
    aggregation: Aggregation
    """Way from its token losses to one number, over the whole update."""
    correction: ComponentRef | None = None
    """The IS correction; None: samples count as the policy's own."""
    kl_estimator: ComponentRef | None = None
    """None: no KL term in the loss."""
    kl_tail: Literal["linear", "clamp"] = "linear"
    """Form of the KL term beyond 10 nats: see ``math.kl_estimate``. Has no effect on the unbiased gradient."""
    kl_unbiased_gradient: bool = False
    """Replace the gradient of the KL term by the unbiased one; its value stays that of the estimator."""
    entropy_bonus: bool = False
    """True: ``StepPlan.entropy_coef`` may be positive."""
    terms: tuple[LossTerm, ...] = ()
    """Further losses that are added."""
    off_policy_mask: float | None = None
    """The policy loss leaves out the actions of a negative advantage in rows whose mean log-ratio of the sampler to the
    policy is above this, in nats per token (``math.off_policy_mask``); None: it leaves none out for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueObjective(Objective):
    """The critic's objective: half the squared error to the returns, clipped, as ``math.value_loss`` says."""

    builder: ClassVar[str] = "rlhf_core.objective.built:value"

    value_clip: float | None = None
    """Largest change of a value from its old one, in units of reward; None: any."""
    aggregation: Aggregation = "token-mean"
    """Way from squared errors to one number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceTerm:
    """A further preference loss, on the same answers."""

    loss: ComponentRef
    """The preference loss. It takes pairs if the first one does."""
    weight: float
    """Factor of the term, above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceObjective(Objective):
    """The objective of a policy that learns from answers of which some were preferred: weighted preference losses +
    nll_coef * the mean over chosen answers of their negative log-likelihood per token."""

    builder: ClassVar[str] = "rlhf_core.objective.built:preference"

    loss: ComponentRef
    """The preference loss, whose rewards are those that are measured."""
    weight: float = 1.0
    """Factor of this loss, above 0."""
    terms: tuple[PreferenceTerm, ...] = ()
    """Further preference losses that are added."""
    nll_coef: float = 0.0
    """Factor of the chosen answers' mean negative log-likelihood; 0: none is added."""

    def rows_per_unit(self, plugins: Plugins) -> int:
        """Return 2 for a loss on pairs, else 1."""
        component = plugins.get(self.loss.kind, self.loss.name).component
        return 1 if UNPAIRED_ANSWERS in component.provides else 2


MARGIN = "margin"
"""Name among ``TrajectoryColumns.rewards`` of how much better a pair's chosen answer is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingObjective(Objective):
    """The objective of a reward model that learns which of two answers was preferred: ranking loss of the scores
    + center_coef * the mean over pairs of the squared sum of both scores."""

    builder: ClassVar[str] = "rlhf_core.objective.built:ranking"

    loss: Literal["sigmoid", "log_exp"] = "sigmoid"
    """``sigmoid`` subtracts a pair's margin from the difference of its scores, ``log_exp`` does not read it:
    ``objective.ranking`` has the formula."""
    center_coef: float = 0.0
    """Factor of the squared sum of a pair's scores, which holds them around 0; 0: none is added."""

    def rows_per_unit(self, plugins: Plugins) -> int:
        """Return 2: the answers of a pair stay together."""
        return 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLabelObjective(Objective):
    """The objective of a process reward model: the mean over all labeled steps of the update of the cross-entropy
    between a step's label and the sigmoid of its score."""

    builder: ClassVar[str] = "rlhf_core.objective.built:step_labels"

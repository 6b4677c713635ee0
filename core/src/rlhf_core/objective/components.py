"""The components that a policy objective names, built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..capabilities import APPLIES_IS_WEIGHTS, NO_ADVANTAGES
from ..component import ComponentRef
from ..contracts.backend import LossTerm, PolicyObjective
from ..contracts.correction import IsCorrection
from ..contracts.functions.kl import KlEstimator
from ..contracts.loss import PolicyLoss
from ..plugins import Plugins


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltTerm:
    """A further loss beside the policy loss."""

    term: LossTerm
    name: str
    """Name of the loss's component, under which the term is logged."""
    loss: PolicyLoss
    needs_advantages: bool = True
    """False: it teaches the same whatever the rewards are, so that rows whose rewards do not count train it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyComponents:
    """A ``PolicyObjective`` with its policy loss, its correction, its KL estimator and the losses of its terms."""

    objective: PolicyObjective
    loss: PolicyLoss
    correction: IsCorrection | None
    """None: the losses of the rollouts are not weighted."""
    applies_is_weights: bool
    """True: the policy loss multiplies itself by the correction's weights."""
    wants_entropy: bool
    """True: some loss reads the entropy."""
    kl_estimator: KlEstimator | None = None
    """None: no KL term in the loss."""
    terms: tuple[BuiltTerm, ...] = ()

    @classmethod
    def build(cls, objective: PolicyObjective, plugins: Plugins) -> PolicyComponents:
        """Build the components that the objective names.

        Raises:
            PluginError: a component cannot be imported or built.
            UnknownComponent: no plugin provides a component of that name.
        """
        component = plugins.get(objective.loss.kind, objective.loss.name).component
        correction = plugins.build(objective.correction) if objective.correction else None
        kl = plugins.build(objective.kl_estimator) if objective.kl_estimator else None
        losses = [objective.loss, *(term.loss for term in objective.terms)]
        return cls(
            objective=objective,
            loss=plugins.build(objective.loss),
            correction=correction,
            applies_is_weights=APPLIES_IS_WEIGHTS in component.provides,
            wants_entropy=any("entropy" in _needs(loss, plugins) for loss in losses),
            kl_estimator=kl,
            terms=tuple(
                BuiltTerm(
                    term=term,
                    name=plugins.get(term.loss.kind, term.loss.name).name,
                    loss=plugins.build(term.loss),
                    needs_advantages=NO_ADVANTAGES
                    not in plugins.get(term.loss.kind, term.loss.name).component.provides,
                )
                for term in objective.terms
            ),
        )

    def terms_on(self, rows: Literal["rollouts", "supervised"]) -> Iterator[BuiltTerm]:
        """Yield the terms that are computed on these rows."""
        return (built for built in self.terms if built.term.rows == rows)


def _needs(loss: ComponentRef, plugins: Plugins) -> frozenset[str]:
    registered = plugins.get(loss.kind, loss.name)
    options = registered.validate(loss.options)
    return registered.component.needs | options.needed_by_options()

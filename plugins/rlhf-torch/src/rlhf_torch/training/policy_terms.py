"""The components that a policy objective names, built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlhf_core.contracts import ComponentRef, IsCorrection, LossTerm, PolicyLoss, PolicyObjective
from rlhf_core.plugins import Plugins

APPLIES_IS_WEIGHTS = "applies_is_weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltTerm:
    """A further loss beside the policy loss."""

    term: LossTerm
    name: str
    """The component's name, under which it is logged."""
    loss: PolicyLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTerms:
    """The built parts of a ``PolicyObjective``."""

    objective: PolicyObjective
    loss: PolicyLoss
    correction: IsCorrection | None
    applies_is_weights: bool
    """The loss puts the correction's weights on itself."""
    wants_entropy: bool
    terms: tuple[BuiltTerm, ...] = ()

    @classmethod
    def build(cls, objective: PolicyObjective, plugins: Plugins) -> PolicyTerms:
        """Build the components that the objective names."""
        component = plugins.get(objective.loss.kind, objective.loss.name).component
        correction = plugins.build(objective.correction) if objective.correction else None
        losses = [objective.loss, *(term.loss for term in objective.terms)]
        return cls(
            objective=objective,
            loss=plugins.build(objective.loss),
            correction=correction,
            applies_is_weights=APPLIES_IS_WEIGHTS in component.provides,
            wants_entropy=any("entropy" in _needs(loss, plugins) for loss in losses),
            terms=tuple(
                BuiltTerm(
                    term=term,
                    name=plugins.get(term.loss.kind, term.loss.name).name,
                    loss=plugins.build(term.loss),
                )
                for term in objective.terms
            ),
        )

    def of(self, rows: str) -> Iterator[BuiltTerm]:
        """Yield the terms on ``rollouts`` or on ``supervised`` rows."""
        return (built for built in self.terms if built.term.rows == rows)


def _needs(loss: ComponentRef, plugins: Plugins) -> frozenset[str]:
    registered = plugins.get(loss.kind, loss.name)
    options = registered.validate(loss.options)
    return registered.component.needs | options.needed_by_options()

"""The entrance for training backends: a role's objective with its components built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from typing import Any, TypeAlias, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..called import Checked
from ..contracts.backend import (
    Objective,
    PolicyObjective,
    PreferenceObjective,
    RankingObjective,
    StepLabelObjective,
    StepPlan,
    ValueObjective,
)
from ..contracts.preference import PreferenceInputs, PreferenceResult
from ..errors import PluginError
from ..plugins import Plugins
from .columns import ActionColumns, ActionScores
from .policy import BuiltPolicyObjective, Part, PolicyComponents
from .preference import preference_objective
from .preference_sum import PreferenceSum, WeightedPreferenceLoss
from .ranking import ranking_objective
from .step_labels import step_label_objective
from .value import value_objective

ReadT = TypeVar("ReadT")
LossOf: TypeAlias = Callable[[ReadT, ActionColumns, StepPlan], Part]
"""Function from what the model gives at the actions, with their columns and the step's plan, to a part."""


@dataclass(frozen=True, slots=True)
class BuiltActionObjective:
    """An objective on the log-probs of actions, other than the policy's: its loss alone."""

    loss: LossOf[ActionScores]
    rows_per_unit: int = 1
    """Neighboring rows that a micro-batch has all of, or none: 2 for a loss on pairs."""

    def rollouts(self, scores: ActionScores, columns: ActionColumns, plan: StepPlan) -> Part:
        """Return the part of rows of ``TrainBatch.trajectories``."""
        return self.loss(scores, columns, plan)


@dataclass(frozen=True, slots=True)
class BuiltValueObjective:
    """An objective on the numbers (M,) of the head ``value``, one before each action: the critic's."""

    loss: LossOf[Tensor]
    rows_per_unit: int = 1

    def rollouts(self, values: Float[Tensor, " m"], columns: ActionColumns, plan: StepPlan) -> Part:
        """Return the part of rows of ``TrainBatch.trajectories``."""
        return self.loss(values, columns, plan)


@dataclass(frozen=True, slots=True)
class BuiltScoreObjective:
    """An objective on the numbers (M,) of the head ``score``, one at each action: a reward model's."""

    loss: LossOf[Tensor]
    rows_per_unit: int = 1

    def rollouts(self, scores: Float[Tensor, " m"], columns: ActionColumns, plan: StepPlan) -> Part:
        """Return the part of rows of ``TrainBatch.trajectories``."""
        return self.loss(scores, columns, plan)


BuiltObjective: TypeAlias = (
    BuiltPolicyObjective | BuiltActionObjective | BuiltValueObjective | BuiltScoreObjective
)


def build_objective(objective: Objective, plugins: Plugins) -> BuiltObjective:
    """Build the components that a role's objective (``RoleSpec.objective``) names, by its ``builder``.

    Raises:
        PluginError: the builder or a component cannot be imported or built.
        UnknownComponent: no plugin provides a component of that name.
    """
    try:
        builder = resolve_name(objective.builder)
    except (AttributeError, ImportError, ValueError) as error:
        raise PluginError(
            f"{type(objective).__name__}.builder: expected 'module:callable', which makes the objective; got "
            f"{getattr(objective, 'builder', None)!r} ({error}). Set it in the class, and install its module.",
            code="plugin/no-builder",
        ) from error
    built: BuiltObjective = builder(objective, plugins)
    return built


def policy(objective: PolicyObjective, plugins: Plugins) -> BuiltObjective:
    """Build a policy's objective."""
    return BuiltPolicyObjective(PolicyComponents.build(objective, plugins))


def value(objective: ValueObjective, plugins: Plugins) -> BuiltObjective:
    """Build a critic's objective; see ``value_objective``."""
    return BuiltValueObjective(partial(value_objective, objective))


def preference(objective: PreferenceObjective, plugins: Plugins) -> BuiltObjective:
    """Build the objective of a policy that learns from preferred answers; see ``preference_objective``."""
    rows = objective.rows_per_unit(plugins)
    weights = [(objective.loss, objective.weight)]
    weights += [(term.loss, term.weight) for term in objective.terms]
    parts, unit = [], "pair" if rows == 2 else "answer"

    def like(inputs: PreferenceInputs) -> dict[str, Tensor]:
        chosen, rejected = inputs.chosen.policy, inputs.rejected.policy
        units = torch.cat([chosen, rejected])[::rows]  # (U,)
        return {"loss": units, "chosen_rewards": chosen, "rejected_rewards": rejected}

    for ref, weight in weights:
        found = plugins.get(ref.kind, ref.name)
        part: Any = Checked(plugins.build(ref), PreferenceResult, found.label, unit, like)
        parts.append(WeightedPreferenceLoss(name=found.name, loss=part, weight=weight))
    loss = PreferenceSum(parts)
    return BuiltActionObjective(
        partial(preference_objective, loss, rows_per_unit=rows, nll_coef=objective.nll_coef), rows
    )


def ranking(objective: RankingObjective, plugins: Plugins) -> BuiltObjective:
    """Build the objective of a reward model that learns from pairs; see ``ranking_objective``."""
    return BuiltScoreObjective(
        partial(ranking_objective, objective), objective.rows_per_unit(plugins)
    )


def step_labels(objective: StepLabelObjective, plugins: Plugins) -> BuiltObjective:
    """Build the objective of a process reward model; see ``step_label_objective``."""
    return BuiltScoreObjective(step_label_objective)


def rows_per_unit(objective: Objective | None, plugins: Plugins) -> int:
    """Return ``Objective.rows_per_unit``; 1 for a role without an objective."""
    return 1 if objective is None else objective.rows_per_unit(plugins)

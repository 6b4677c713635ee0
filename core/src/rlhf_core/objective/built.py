"""The entrance for training backends: a role's objective with its components built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from jaxtyping import Float
from torch import Tensor

from ..batch.metric import Metrics
from ..capabilities import UNPAIRED_ANSWERS
from ..contracts.backend import (
    Normalizers,
    Objective,
    PreferenceObjective,
    RankingObjective,
    StepLabelObjective,
    StepPlan,
    ValueObjective,
)
from ..contracts.preference import PreferenceLoss
from ..plugins import Plugins
from .columns import ActionColumns, ActionGrid
from .policy import PolicyComponents, policy_objective
from .preference import preference_objective
from .preference_sum import PreferenceSum, WeightedPreferenceLoss
from .ranking import ranking_objective
from .scores import ActionScores
from .step_labels import step_label_objective
from .supervised import supervised_objective
from .value import value_objective


@dataclass(frozen=True, slots=True)
class BuiltPolicyObjective:
    """The policy's objective, with its components built.

    Both methods return this micro-batch's part of the step's loss and the metrics of the part. A backend calls
    ``backward`` on every part, so that the gradients add up to the step's, and merges the metrics with
    ``read_metrics``. It does not divide, weight or clip a part: all totals are in the plan already.
    """

    components: PolicyComponents
    rows_per_unit: int = 1

    def rollouts(
        self, scores: ActionScores, columns: ActionColumns, plan: StepPlan
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """Return the part of rows of ``TrainBatch.trajectories``; see ``policy_objective``."""
        return policy_objective(self.components, scores, columns, plan)

    def supervised(
        self, scores: ActionScores, grid: ActionGrid, totals: Normalizers
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """Return the part of rows of ``TrainBatch.supervised``; see ``supervised_objective``."""
        return supervised_objective(self.components, scores, grid, totals)


@dataclass(frozen=True, slots=True)
class BuiltValueObjective:
    """The critic's objective."""

    objective: ValueObjective
    rows_per_unit: int = 1

    def rollouts(
        self, values: Float[Tensor, " m"], columns: ActionColumns, plan: StepPlan
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """Return the part of rows of ``TrainBatch.trajectories``; see ``value_objective``."""
        return value_objective(self.objective, values, columns, plan)


@dataclass(frozen=True, slots=True)
class BuiltPreferenceObjective:
    """The objective of a policy that learns from preferred answers."""

    loss: PreferenceLoss
    nll_coef: float
    rows_per_unit: int
    """Neighboring rows that a micro-batch has all of, or none: 2 for a loss on pairs."""

    def rollouts(
        self, scores: ActionScores, columns: ActionColumns, plan: StepPlan
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """Return the part of rows of ``TrainBatch.trajectories``; see ``preference_objective``."""
        return preference_objective(
            self.loss,
            scores,
            columns,
            plan,
            rows_per_unit=self.rows_per_unit,
            nll_coef=self.nll_coef,
        )


@dataclass(frozen=True, slots=True)
class BuiltRankingObjective:
    """The objective of a reward model that learns from pairs."""

    objective: RankingObjective
    rows_per_unit: int = 2

    def rollouts(
        self, scores: Float[Tensor, " m"], columns: ActionColumns, plan: StepPlan
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """Return the part of rows of ``TrainBatch.trajectories``; see ``ranking_objective``."""
        return ranking_objective(self.objective, scores, columns, plan)


@dataclass(frozen=True, slots=True)
class BuiltStepLabelObjective:
    """The objective of a process reward model."""

    rows_per_unit: int = 1

    def rollouts(
        self, scores: Float[Tensor, " m"], columns: ActionColumns, plan: StepPlan
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """Return the part of rows of ``TrainBatch.trajectories``; see ``step_label_objective``."""
        return step_label_objective(scores, columns, plan)


BuiltScoreObjective: TypeAlias = BuiltRankingObjective | BuiltStepLabelObjective
"""Objectives on the numbers of the head ``score``."""
BuiltObjective: TypeAlias = (
    BuiltPolicyObjective | BuiltValueObjective | BuiltPreferenceObjective | BuiltScoreObjective
)


def build_objective(objective: Objective, plugins: Plugins) -> BuiltObjective:
    """Build the components that a role's objective (``RoleSpec.objective``) names.

    Raises:
        PluginError: a component cannot be imported or built.
        UnknownComponent: no plugin provides a component of that name.
    """
    if isinstance(objective, ValueObjective):
        return BuiltValueObjective(objective)
    if isinstance(objective, RankingObjective):
        return BuiltRankingObjective(objective)
    if isinstance(objective, StepLabelObjective):
        return BuiltStepLabelObjective()
    if isinstance(objective, PreferenceObjective):
        return BuiltPreferenceObjective(
            loss=_preference_loss(objective, plugins),
            nll_coef=objective.nll_coef,
            rows_per_unit=rows_per_unit(objective, plugins),
        )
    return BuiltPolicyObjective(PolicyComponents.build(objective, plugins))


def _preference_loss(objective: PreferenceObjective, plugins: Plugins) -> PreferenceLoss:
    """Return the objective's losses as one."""
    weights = [(objective.loss, objective.weight)]
    weights += [(term.loss, term.weight) for term in objective.terms]
    return PreferenceSum(
        [
            WeightedPreferenceLoss(
                name=plugins.get(ref.kind, ref.name).name, loss=plugins.build(ref), weight=weight
            )
            for ref, weight in weights
        ]
    )


def rows_per_unit(objective: Objective | None, plugins: Plugins) -> int:
    """Return the number of neighboring rows that stay together, on one rank and in one micro-batch: 2 for the pairs
    that a ranking and most preference losses learn from, else 1.

    Raises:
        UnknownComponent: no plugin provides the preference loss.
    """
    if isinstance(objective, RankingObjective):
        return 2
    if not isinstance(objective, PreferenceObjective):
        return 1
    component = plugins.get(objective.loss.kind, objective.loss.name).component
    return 1 if UNPAIRED_ANSWERS in component.provides else 2

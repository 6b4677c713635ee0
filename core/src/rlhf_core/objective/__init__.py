"""The loss of one optimizer step, made of the components that a run names: a training backend descends its gradient.

Here live the formulas between a model's results for a micro-batch (log-probs, entropies, values) and the scalar whose
gradient is taken. Models, packing, optimizers and the components live elsewhere: a backend supplies the results and
calls ``backward``, plugins supply the components.

A backend's side of a step, for a policy:

    objective = build_objective(spec.objective, plugins)
    for rows in micro_batches:
        grid = ActionGrid.of(trajectories.num_actions[rows], device)
        columns = ActionColumns.of(batch, rows, grid)
        loss, metrics = objective.rollouts(scores_of(rows, columns.teacher_top_ids), columns, plan)
        loss.backward()

Axes: ``B`` rows of a micro-batch, ``A`` actions of its longest row, ``M`` actions of all its rows, ``K`` tokens that
the teacher finds most probable.
"""

from ..batch.metric import mean_metric, read_metrics
from .built import (
    BuiltActionObjective,
    BuiltObjective,
    BuiltScoreObjective,
    BuiltValueObjective,
    build_objective,
    rows_per_unit,
)
from .columns import ActionColumns, ActionGrid, ActionScores, on_device
from .policy import (
    BuiltPolicyObjective,
    BuiltTerm,
    HearLosses,
    PolicyComponents,
    policy_objective,
    supervised_objective,
)
from .preference import preference_objective
from .preference_sum import PreferenceSum, WeightedPreferenceLoss
from .ranking import centering_penalty, ranking_loss, ranking_objective
from .step_labels import step_label_objective
from .value import value_objective

__all__ = [
    "ActionColumns",
    "ActionGrid",
    "ActionScores",
    "BuiltActionObjective",
    "BuiltObjective",
    "BuiltPolicyObjective",
    "BuiltScoreObjective",
    "BuiltTerm",
    "BuiltValueObjective",
    "HearLosses",
    "PolicyComponents",
    "PreferenceSum",
    "WeightedPreferenceLoss",
    "build_objective",
    "centering_penalty",
    "mean_metric",
    "on_device",
    "policy_objective",
    "preference_objective",
    "ranking_loss",
    "ranking_objective",
    "read_metrics",
    "rows_per_unit",
    "step_label_objective",
    "supervised_objective",
    "value_objective",
]

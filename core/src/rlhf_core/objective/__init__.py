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

from ..batch.metric import mean_metric as mean_metric
from ..batch.metric import read_metrics as read_metrics
from .built import BuiltActionObjective as BuiltActionObjective
from .built import BuiltObjective as BuiltObjective
from .built import BuiltScoreObjective as BuiltScoreObjective
from .built import BuiltValueObjective as BuiltValueObjective
from .built import build_objective as build_objective
from .built import rows_per_unit as rows_per_unit
from .columns import ActionColumns as ActionColumns
from .columns import ActionGrid as ActionGrid
from .columns import ActionScores as ActionScores
from .columns import on_device as on_device
from .policy import BuiltPolicyObjective as BuiltPolicyObjective
from .policy import BuiltTerm as BuiltTerm
from .policy import PolicyComponents as PolicyComponents
from .policy import RecordLosses as RecordLosses
from .policy import policy_objective as policy_objective
from .policy import supervised_objective as supervised_objective
from .preference import preference_objective as preference_objective
from .preference_sum import PreferenceSum as PreferenceSum
from .preference_sum import WeightedPreferenceLoss as WeightedPreferenceLoss
from .ranking import centering_penalty as centering_penalty
from .ranking import ranking_loss as ranking_loss
from .ranking import ranking_objective as ranking_objective
from .step_labels import step_label_objective as step_label_objective
from .value import value_objective as value_objective

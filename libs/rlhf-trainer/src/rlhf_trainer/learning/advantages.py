"""Advantages of a batch, as its estimator gives them: checked, and back in flat columns."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core.batch.finite import require_finite
from rlhf_core.batch.metric import Metric, Metrics
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.called.signatures import answered
from rlhf_core.contracts.advantage import AdvantageEstimator, Advantages
from rlhf_core.errors import PluginError
from rlhf_core.math import unpad

from .model_outputs import Columns, ModelOutputs
from .reward_batch import KlPenalty, group_metrics, make_reward_batch


def advantages(
    batch: TrajectoryColumns,
    outputs: ModelOutputs,
    estimator: AdvantageEstimator,
    kl: KlPenalty | None,
    *,
    reward_weights: Mapping[str, float] | None = None,
    with_observations: bool = False,
) -> tuple[Columns, Metrics]:
    """Return the columns ``advantages`` (and ``returns``, where the estimator gives them), and metrics.

    Raises:
        NonFiniteError: the estimator returned NaN or infinity; the message names the first sample.
        PluginError: it returned another shape or no ``Advantages``, or no returns although it needs values.
    """
    columns = outputs.columns
    reward_batch = make_reward_batch(
        batch, outputs, kl, reward_weights=reward_weights, with_observations=with_observations
    )
    result = answered(estimator(reward_batch), Advantages, "the advantage estimator")
    mask = reward_batch.action_mask
    _check_shapes(result, mask, needs_returns=reward_batch.values is not None)
    out = {"advantages": _flat(result.advantages, mask)}
    if result.returns is not None:
        out["returns"] = _flat(result.returns, mask)
    for name, column in out.items():
        require_finite(batch, name, column)
    metrics = group_metrics(reward_batch) | result.metrics
    metrics["advantage/abs_mean"] = Metric(
        float(np.abs(out["advantages"]).sum()), len(out["advantages"])
    )
    if "returns" in out and "values" in columns:
        explained = _explained_variance(columns["values"], out["returns"])
        metrics["critic/explained_variance"] = Metric(explained)
    if kl is not None and reward_batch.kl_penalty is not None:
        penalty = float(reward_batch.kl_penalty.sum()) / -kl.coef
        metrics["kl/ref"] = Metric(penalty, len(out["advantages"]))
    return out, metrics


def _explained_variance(values: NDArray[np.float32], returns: NDArray[np.float32]) -> float:
    """1 - var(returns - values) / var(returns): 1 for a perfect critic, 0 for one that knows only the mean."""
    variance = float(np.var(returns, dtype=np.float64))
    return 1.0 - float(np.var(returns - values, dtype=np.float64)) / variance if variance else 0.0


def _flat(padded: Tensor, mask: Tensor) -> NDArray[np.float32]:
    column: NDArray[np.float32] = unpad(padded.detach().float(), mask).numpy()
    return column


def _check_shapes(result: Advantages, mask: Tensor, *, needs_returns: bool) -> None:
    for name in ("advantages", "returns"):
        column = getattr(result, name)
        if column is not None and column.shape != mask.shape:
            raise PluginError(
                f"the advantage estimator returned {name} of shape {tuple(column.shape)}; expected {tuple(mask.shape)}"
            )
    if needs_returns and result.returns is None:
        raise PluginError(
            "the advantage estimator needs values but returned no returns for the critic to learn"
        )

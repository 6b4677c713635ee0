"""From trajectories to columns that can be trained on: log-probs, values, KL, advantages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..batch.metric import Metric, Metrics
from ..batch.trajectory_columns import TrajectoryColumns
from ..contracts.advantage import AdvantageEstimator, Advantages, RewardBatch
from ..contracts.backend import Statistic, TopTokens
from ..contracts.runtime import RoleHandle
from ..errors import NonFiniteError, PluginError
from ..math import group_size, group_std, kl_estimate, pad_columns, unpad
from ..rollouts.episodes import GREEDY_REWARD
from .demands import Demands
from .final_values import final_values
from .observations import observations
from .roles import CRITIC, POLICY, REFERENCE, TEACHER

Columns = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KlPenalty:
    """The KL in the reward, as it is in force at this step."""

    coef: float
    estimator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What the models say of a batch."""

    columns: Columns
    """(sum of A,) each, for the losses: log-probs by policy, and values."""
    sum_pi_squared: NDArray[np.float32] | None = None
    """(sum of A,)"""
    final_values: NDArray[np.float32] | None = None
    """(B,)"""
    teacher_top: TopTokens | None = None


async def score(
    batch: TrajectoryColumns, roles: Mapping[str, RoleHandle], demands: Demands
) -> Scores:
    """Return what this run needs to know of a batch."""
    columns: Columns = {}
    asked = np.repeat(has_logprobs(batch), batch.num_actions)
    _require_finite(batch, "rollout_logprobs", np.where(asked, batch.rollout_logprobs, 0.0))
    if demands.rollout_logprobs:
        columns["rollout_logprobs"] = batch.rollout_logprobs
    statistics: dict[Statistic, NDArray[np.float32]] = {}
    if demands.old_statistics:
        statistics = await roles[POLICY].statistics(batch, demands.old_statistics)
    if demands.rollout_as_old:
        columns["old_logprobs"] = batch.rollout_logprobs
    elif "logprobs" in statistics:
        columns["old_logprobs"] = statistics["logprobs"]
    if demands.reference:
        columns["ref_logprobs"] = await roles[REFERENCE].logprobs(batch)
    if demands.teacher_logprobs:
        columns["teacher_logprobs"] = await roles[TEACHER].logprobs(batch)
    if demands.critic:
        columns["values"] = await roles[CRITIC].values(batch)
    for name, column in columns.items():
        _require_finite(batch, name, column)
    top = demands.teacher_top_k
    return Scores(
        columns=columns,
        sum_pi_squared=statistics.get("sum_pi_squared"),
        final_values=await final_values(batch, roles[CRITIC]) if demands.final_values else None,
        teacher_top=await roles[TEACHER].top_tokens(batch, top) if top else None,
    )


def has_logprobs(batch: TrajectoryColumns) -> NDArray[np.bool_]:
    """(B,) True where the sampler's log-probs are known; those that nobody asked the engine for are NaN."""
    so_far = np.concatenate([[0], np.cumsum(~np.isnan(batch.rollout_logprobs))])
    present: NDArray[np.bool_] = np.diff(so_far[batch.action_offsets]) > 0
    return present


def advantages(
    batch: TrajectoryColumns,
    scores: Scores,
    estimator: AdvantageEstimator,
    kl: KlPenalty | None,
    *,
    reward_weights: Mapping[str, float] | None = None,
    with_observations: bool = False,
) -> tuple[Columns, Metrics]:
    """Return the columns ``advantages`` (and ``returns``, where the estimator gives them), and metrics.

    Raises:
        NonFiniteError: the estimator returned NaN or infinity; the message names the first sample.
        PluginError: it returned another shape, or no returns although it needs values.
    """
    columns = scores.columns
    reward_batch = make_reward_batch(
        batch, scores, kl, reward_weights=reward_weights, with_observations=with_observations
    )
    result = estimator(reward_batch)
    mask = reward_batch.action_mask
    _check_shapes(result, mask, needs_returns=reward_batch.values is not None)
    out = {"advantages": _flat(result.advantages, mask)}
    if result.returns is not None:
        out["returns"] = _flat(result.returns, mask)
    for name, column in out.items():
        _require_finite(batch, name, column)
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


def group_metrics(batch: RewardBatch) -> Metrics:
    """Return the mean spread of rewards in a group, and the share of groups in which all rows earned the same: no
    baseline over the group can learn from those."""
    std = group_std(batch.rewards, batch.group, batch.episode, correction=0)  # (B,)
    share = 1.0 / group_size(batch.group)  # (B,) each group's rows add up to 1
    num_groups = share.sum()
    return {
        "group/reward_std": Metric((std * share).sum(), num_groups),
        "group/no_signal": Metric(((std == 0) * share).sum(), num_groups),
    }


def make_reward_batch(
    batch: TrajectoryColumns,
    scores: Scores,
    kl: KlPenalty | None,
    *,
    reward_weights: Mapping[str, float] | None = None,
    with_observations: bool = False,
) -> RewardBatch:
    """Lay a batch out as (B, A), action tokens only."""
    lengths = torch.from_numpy(batch.num_actions)
    columns = scores.columns

    def padded(flat: NDArray[Any]) -> Tensor:
        return pad_columns(torch.from_numpy(np.ascontiguousarray(flat)), lengths)[0]

    def optional(flat: NDArray[np.float32] | None) -> Tensor | None:
        return None if flat is None else padded(flat)

    token_rewards, mask = pad_columns(torch.from_numpy(batch.action_rewards), lengths)
    rows = torch.arange(len(batch))
    token_rewards[rows, lengths - 1] += torch.from_numpy(batch.reward)
    penalty = None
    if kl is not None:
        # Clamped: here it is a number beside rewards, and no gradient is lost.
        estimate = kl_estimate(
            padded(columns["old_logprobs"]),
            padded(columns["ref_logprobs"]),
            kl.estimator,
            tail="clamp",
        )
        penalty = torch.where(mask, -kl.coef * estimate, 0.0)
        token_rewards = token_rewards + penalty
    greedy = batch.metrics.get(GREEDY_REWARD)
    final = scores.final_values
    return RewardBatch(
        token_rewards=token_rewards,
        rewards=torch.from_numpy(batch.total_reward),
        action_mask=mask,
        group=torch.from_numpy(batch.group),
        episode=torch.from_numpy(batch.episode),
        turn=padded(batch.action_turn),
        truncated=torch.from_numpy(batch.truncated),
        kl_penalty=penalty,
        values=optional(columns.get("values")),
        rewards_by_name={name: torch.from_numpy(column) for name, column in batch.rewards.items()},
        reward_weights=reward_weights or {},
        final_values=None if final is None else torch.from_numpy(final),
        old_logprobs=optional(columns.get("old_logprobs")),
        sum_pi_squared=optional(scores.sum_pi_squared),
        greedy_rewards=None if greedy is None else torch.from_numpy(greedy),
        observation=padded(observations(batch)) if with_observations else None,
    )


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


def _require_finite(batch: TrajectoryColumns, name: str, column: NDArray[np.float32]) -> None:
    bad = np.flatnonzero(~np.isfinite(column))
    if len(bad):
        row = int(np.searchsorted(batch.action_offsets, bad[0], side="right")) - 1
        uid = ".".join(map(str, batch.uid[row].tolist()))
        raise NonFiniteError(
            f"{name} of sample {uid} is {column[bad[0]]} at action token {bad[0] - batch.action_offsets[row]} "
            f"({len(bad)} such values in this batch); nothing was trained on it"
        )

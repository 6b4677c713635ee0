"""A batch as advantage estimators see it: rewards and model outputs in rows, with the KL penalty in the rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core.batch.metric import Metric, Metrics
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.batch.turn_credit import turn_credit
from rlhf_core.contracts.advantage import RewardBatch
from rlhf_core.contracts.functions.kl import KlEstimator
from rlhf_core.errors import NonFiniteError
from rlhf_core.math import group_size, group_std, kl_estimate, pad_columns

from ..rollouts.episodes import GREEDY_REWARD
from .model_outputs import ModelOutputs
from .observations import observations


@dataclass(frozen=True, slots=True, kw_only=True)
class KlPenalty:
    """The KL in the reward, as it is in force at this step."""

    coef: float
    estimator: KlEstimator
    label: str = "--algo.kl.estimator"
    """Name of the estimator in errors: the option, the component, its plugin and version."""


def make_reward_batch(
    batch: TrajectoryColumns,
    outputs: ModelOutputs,
    kl: KlPenalty | None,
    *,
    reward_weights: Mapping[str, float] | None = None,
    with_observations: bool = False,
) -> RewardBatch:
    """Lay a batch out as (B, A), action tokens only."""
    lengths = torch.from_numpy(batch.num_actions)
    columns = outputs.columns

    def padded(flat: NDArray[Any]) -> Tensor:
        return pad_columns(torch.from_numpy(np.ascontiguousarray(flat)), lengths)[0]

    def optional(flat: NDArray[np.float32] | None) -> Tensor | None:
        return None if flat is None else padded(flat)

    credit = turn_credit(batch)
    elsewhere = np.zeros(int(batch.num_actions.sum()), dtype=np.float32)
    elsewhere[np.cumsum(batch.turn_actions) - 1] = credit.meanwhile
    elsewhere[batch.action_offsets[1:] - 1] += (batch.reward_at_end - credit.before).astype(
        np.float32
    )
    earned, mask = pad_columns(torch.from_numpy(batch.action_rewards), lengths)
    token_rewards = earned + padded(elsewhere)
    steps = torch.from_numpy(batch.step_rows), torch.from_numpy(batch.step_actions)
    token_rewards.index_put_(steps, torch.from_numpy(batch.step_rewards), accumulate=True)
    penalty = None
    if kl is not None:
        # Clamped: here it is a number beside rewards, and no gradient is lost.
        policy, reference = padded(columns["old_logprobs"]), padded(columns["ref_logprobs"])
        estimate = kl_estimate(policy, reference, kl.estimator, tail="clamp")
        _require_finite_kl(estimate, policy - reference, mask, kl.label)
        penalty = torch.where(mask, -kl.coef * estimate, 0.0)
        token_rewards = token_rewards + penalty
    greedy = batch.metrics.get(GREEDY_REWARD)
    final = outputs.final_values
    return RewardBatch(
        token_rewards=token_rewards,
        rewards=torch.from_numpy(batch.total_reward),
        action_mask=mask,
        group=torch.from_numpy(batch.group),
        episode=torch.from_numpy(batch.episode),
        turn=padded(np.repeat(credit.number, batch.turn_actions)),
        truncated=torch.from_numpy(batch.truncated),
        kl_penalty=penalty,
        elsewhere=padded(elsewhere),
        values=optional(columns.get("values")),
        rewards_by_name={name: torch.from_numpy(column) for name, column in batch.rewards.items()},
        reward_weights=reward_weights or {},
        final_values=None if final is None else torch.from_numpy(final),
        old_logprobs=optional(columns.get("old_logprobs")),
        sum_pi_squared=optional(outputs.sum_pi_squared),
        greedy_rewards=None if greedy is None else torch.from_numpy(greedy),
        observation=padded(observations(batch)) if with_observations else None,
    )


def _require_finite_kl(estimate: Tensor, log_ratio: Tensor, mask: Tensor, label: str) -> None:
    """Raise NonFiniteError where a finite log-ratio has an estimate that is not; models are blamed elsewhere."""
    wrong = mask & torch.isfinite(log_ratio) & ~torch.isfinite(estimate)
    if wrong.any():
        given, found = float(log_ratio[wrong][0]), float(estimate[wrong][0])
        raise NonFiniteError(
            f"{label}: it gave {found} for the log-ratio {given:.6g}; expected a finite estimate in nats. "
            "Choose another estimator, or have it grow no faster than a line there."
        )


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

"""Advantages and returns: what an estimator makes of rewards and of the models' outputs, and metrics of both.

A check ends a run whose estimator leaves the KL penalty out. With ``algo.kl.mode = reward`` the penalty reaches the
policy through the estimator alone. With an estimator that reads ``RewardBatch.rewards`` alone a run would train without
any penalty, and no metric would say why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core.batch.metric import Metric, Metrics
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.called import name_taken
from rlhf_core.contracts.advantage import AdvantageEstimator, Advantages, RewardBatch
from rlhf_core.contracts.functions.kl import KlEstimator
from rlhf_core.errors import CapabilityError, NonFiniteError, PluginError
from rlhf_core.math import group_size, group_std, kl_estimate, pad_columns, unpad
from rlhf_core.math.turns import turn_credit

from ..rollouts.episodes import GREEDY_REWARD
from .model_outputs import Columns, ModelOutputs, require_finite

_LEAST_CHANGE = 1e-3
"""Smallest change that counts, as a share of the largest advantage: far above float32's rounding, far below the change
by a penalty as large as a reward."""


def advantages(
    batch: TrajectoryColumns,
    outputs: ModelOutputs,
    estimator: AdvantageEstimator,
    kl: KlPenalty | None,
    *,
    reward_weights: Mapping[str, float] | None = None,
    with_observations: bool = False,
    label: str = "--algo.advantage.estimator",
) -> tuple[Columns, Metrics]:
    """Return the columns ``advantages`` (and ``returns``, where the estimator gives them), and metrics.

    Raises:
        NonFiniteError: the estimator returned NaN or infinity; the message names the first sample.
        PluginError: it returned no returns although it needs values, or a metric of a name that the run has.
    """
    # The estimator may be anyone's: what it returns is looked at before a model learns from it.
    columns = outputs.columns
    reward_batch = make_reward_batch(
        batch, outputs, kl, reward_weights=reward_weights, with_observations=with_observations
    )
    result = estimator(reward_batch)
    mask = reward_batch.action_mask
    if reward_batch.values is not None and result.returns is None:
        raise PluginError(
            f"{label} needs values but returned no returns for the critic to learn",
            code="plugin/no-returns",
        )
    out = {"advantages": _flat(result.advantages, mask)}
    if result.returns is not None:
        out["returns"] = _flat(result.returns, mask)
    for name, column in out.items():
        require_finite(batch, f"{label}: {name}", column)
    # Metrics say what there was to learn from: without a spread of rewards advantages are 0.
    metrics = group_metrics(reward_batch)
    size = np.abs(out["advantages"]).sum()
    metrics["advantage/abs_mean"] = Metric(float(size), len(out["advantages"]))
    if "returns" in out and (values := columns.get("values")) is not None:
        metrics["critic/explained_variance"] = Metric(_explained_variance(values, out["returns"]))
    if kl is not None and reward_batch.kl_penalty is not None:
        penalty = float(reward_batch.kl_penalty.sum()) / -kl.coef
        metrics["kl/ref"] = Metric(penalty, len(out["advantages"]))
    if taken := sorted(metrics.keys() & result.metrics.keys()):
        raise name_taken(label, taken[0])
    return out, metrics | result.metrics


def _explained_variance(values: NDArray[np.float32], returns: NDArray[np.float32]) -> float:
    """1 - var(returns - values) / var(returns): 1 for a perfect critic, 0 for one that knows only the mean."""
    variance = float(np.var(returns, dtype=np.float64))
    return 1.0 - float(np.var(returns - values, dtype=np.float64)) / variance if variance else 0.0


def _flat(padded: Tensor, mask: Tensor) -> NDArray[np.float32]:
    column: NDArray[np.float32] = unpad(padded.detach().float(), mask).numpy()
    return column


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

    # Rewards of turns and of steps stand at the actions that earned them; those of other rows count beside them.
    turns, elsewhere = turn_credit(batch)
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
    # Columns that nobody demanded are None: an estimator that reads one has to name it in its needs.
    greedy = batch.metrics.get(GREEDY_REWARD)
    final = outputs.final_values
    return RewardBatch(
        token_rewards=token_rewards,
        rewards=torch.from_numpy(batch.total_reward),
        action_mask=mask,
        group=torch.from_numpy(batch.group),
        episode=torch.from_numpy(batch.episode),
        turn=padded(np.repeat(turns, batch.turn_actions)),
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
            "Choose another estimator, or have it grow no faster than a line there.",
            code="training/kl-not-finite",
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


def observations(batch: TrajectoryColumns) -> NDArray[np.int64]:
    """Return (sum of A,) the dense index of what the policy read before each action's turn: text and images.

    That is the prompt for the first turn, and for later ones what the environment showed since the turn before.
    """
    known: dict[tuple[int, bytes], int] = {}
    columns, action_turn = batch.tokens.read(), batch.action_turn
    seen = batch.tokens_with_images()
    out = np.empty(len(action_turn), dtype=np.int64)
    for row, group in enumerate(batch.group.tolist()):
        whole = slice(columns.token_offsets[row], columns.token_offsets[row + 1])
        span = slice(columns.action_offsets[row], columns.action_offsets[row + 1])
        tokens, turns = seen[row], action_turn[span]
        places = np.flatnonzero(columns.action_mask[whole])
        first = np.flatnonzero(np.diff(turns, prepend=-1))  # the first action of each turn
        read_from = 0
        for turn, start in enumerate(first.tolist()):
            end = int(first[turn + 1]) if turn + 1 < len(first) else len(turns)
            read = tokens[read_from : places[start]].tobytes()
            out[span][start:end] = known.setdefault((group, read), len(known))
            read_from = int(places[end - 1]) + 1
    return out


class PenaltyChecked:
    """An estimator, of which ``make`` returns new ones, that is checked with the first batch that has any advantage."""

    def __init__(self, make: Callable[[], AdvantageEstimator], label: str) -> None:
        self._make = make
        self._label = label
        self._estimator = make()
        self._is_checked = False

    def __call__(self, batch: RewardBatch) -> Advantages:
        """Raises:
        CapabilityError: the advantages do not depend on the KL penalty.
        """
        if not self._is_checked and batch.kl_penalty is not None:
            self._is_checked = has_penalty_counted(self._make, batch, self._label)
        return self._estimator(batch)


def has_penalty_counted(
    make: Callable[[], AdvantageEstimator], batch: RewardBatch, label: str
) -> bool:
    """Return True when the advantages of ``batch`` under a large penalty differ from those without any.

    False is for a batch that proves nothing, because it has no advantage either way; nothing is learned from it. The
    batch's own penalty would not do: it is 0 before the first update, when policy and reference are the same. The
    estimators that are asked are new ones, so that the one that trains sees each batch once.

    Raises:
        CapabilityError: there are advantages, and they are the same.
    """
    plain = _with_penalty(batch, torch.zeros_like(batch.token_rewards))
    fined = _with_penalty(batch, -_scale(batch) * _uneven(batch))
    before, after = (make()(asked).advantages for asked in (plain, fined))
    largest, change = before.abs().max(), (after - before).abs().max()
    if change > _LEAST_CHANGE * largest:
        return True
    if largest == 0:
        return False
    raise CapabilityError(
        f"{label}: its advantages are the same with and without the KL penalty, which --algo.kl.mode reward puts "
        "into the rewards of tokens; the run would train without it.\n"
        "  Set --algo.kl.mode loss, or let the estimator add the penalty, as rlhf_core.math.advantages_at_tokens does.",
        code="config/penalty-without-effect",
    )


def _with_penalty(batch: RewardBatch, penalty: Tensor) -> RewardBatch:
    assert batch.kl_penalty is not None
    earned = torch.where(batch.action_mask, batch.token_rewards - batch.kl_penalty, 0.0)
    penalty = torch.where(batch.action_mask, penalty, 0.0)
    return replace(batch, token_rewards=earned + penalty, kl_penalty=penalty)


def _scale(batch: RewardBatch) -> Tensor:
    """Return the size of a penalty that no whitening or critic drowns: the largest reward or value, at least 1."""
    columns = (batch.rewards, batch.token_rewards, batch.values)
    sizes = [column.abs().nan_to_num().max() for column in columns if column is not None]
    return torch.stack([*sizes, batch.rewards.new_ones(())]).max()


def _uneven(batch: RewardBatch) -> Tensor:
    """Return (B, A) with 1, 2 and 3 in turns along rows and tokens: whitening would remove a constant penalty."""
    rows, actions = batch.action_mask.shape
    index = torch.arange(rows)[:, None] + torch.arange(actions)
    return (1 + index % 3).to(batch.token_rewards.dtype)

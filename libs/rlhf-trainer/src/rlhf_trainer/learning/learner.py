"""From a rollout batch to new weights: log-probs and values, advantages, updates."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_config.checks.features import renormalizes
from rlhf_config.resolved import Resolved
from rlhf_core.batch.metric import Metrics, merge_metrics, merge_updates, metric_values
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.capabilities import HEARS_TOKENS
from rlhf_core.contracts.backend import StepOutcome, StepPlan, TrainBatch
from rlhf_core.contracts.learner import LearnOutcome, LearnRequest
from rlhf_core.contracts.loss import PreparingLoss
from rlhf_core.contracts.runtime import RoleHandle
from rlhf_core.math import mismatch_metrics, pad_columns
from rlhf_core.rng import seed_of
from rlhf_core.storage.faults import fault_point

from .advantages import KlPenalty, advantages
from .checks import count_skipped, require_agreement
from .demands import Demands
from .minibatches import Minibatch, minibatches, normalizers_of, prepare
from .model_outputs import Columns, ModelOutputs, ask_models, has_logprobs
from .parts import LearningParts
from .roles import CRITIC, POLICY


@dataclass(slots=True)
class _Step:
    """State of one step under way."""

    request: LearnRequest
    supervised_taken: int
    skipped_updates: dict[str, int]
    heard: Columns
    """(sum of A,) each, which observers alone read."""
    begun: set[str] = field(default_factory=set)
    """Roles that have had an update."""

    def hear_losses(self, rows: NDArray[np.int64], outcome: StepOutcome) -> None:
        """Keep what an update told of its rows, in the place of what an earlier one did."""
        batch = self.request.batch
        for name, told in (("loss", outcome.losses), ("clipped", outcome.clipped)):
            if told is not None:
                nothing = np.full(int(batch.num_actions.sum()), np.nan, np.float32)
                self.heard.setdefault(name, nothing)[batch.action_index(rows)] = told


class BatchLearner:
    """``rlhf_core.contracts.Learner`` with the run's own roles and components."""

    def __init__(
        self,
        resolved: Resolved,
        demands: Demands,
        roles: Mapping[str, RoleHandle],
        parts: LearningParts,
    ) -> None:
        self._run = run = resolved.run
        self._demands = demands
        self._roles = roles
        self._parts = parts
        # Log-probs of older weights, or of a truncated distribution, rightly differ from the trainer's.
        is_comparable = run.rollout.max_staleness == 0 and not renormalizes(run)
        self._max_mismatch = run.rollout.max_mismatch if is_comparable else None
        self._keeps_columns = resolved.provides("observers.use", HEARS_TOKENS)
        self._kl_label = resolved.one("algo.kl.estimator").label
        self._reward_weights = {
            selection.name: selection.reward.weight
            for selection in resolved.selections["reward.use"]
            if selection.reward is not None
        }

    async def learn(self, request: LearnRequest) -> LearnOutcome:
        """See the contract."""
        batch, started = request.batch, time.perf_counter()
        outputs = ModelOutputs(columns={})
        if len(batch):
            outputs = await ask_models(batch, self._roles, self._demands)
        estimates, metrics = self._estimates(request, outputs)
        estimated = time.perf_counter()
        fault_point("train", request.step)
        skipped, heard = dict(request.skipped_updates), dict(outputs.heard)
        step = _Step(request, request.supervised_taken, skipped, heard)
        trains_policy = not self._demands.critic or request.step > self._run.critic.warmup_steps
        updated = await self._update(step, outputs, estimates, trains_policy=trains_policy)
        return LearnOutcome(
            metrics=merge_metrics([metrics, updated]),
            score_s=estimated - started,
            train_s=time.perf_counter() - estimated,
            policy_changed=trains_policy,
            supervised_taken=step.supervised_taken,
            skipped_updates=step.skipped_updates,
            columns=outputs.columns | estimates | step.heard if self._keeps_columns else None,
        )

    def _estimates(self, request: LearnRequest, outputs: ModelOutputs) -> tuple[Columns, Metrics]:
        """Return advantages, and returns for a critic, with 0 where rewards do not count, and metrics."""
        batch, judged = request.batch, request.judged
        rows = np.arange(len(batch)) if judged is None else np.flatnonzero(judged)
        if not len(rows):
            return {"advantages": np.zeros(int(batch.num_actions.sum()), np.float32)}, {}
        penalty, kl = None, self._parts.kl_estimator
        if kl is not None:
            penalty = KlPenalty(coef=request.kl_coef, estimator=kl, label=self._kl_label)
        estimates, metrics = advantages(
            batch if judged is None else batch.select(rows),
            outputs if judged is None else outputs.of_rows(batch, rows),
            self._parts.estimator,
            penalty,
            reward_weights=self._reward_weights,
            with_observations=self._demands.observations,
        )
        if judged is not None:
            estimates = _placed(estimates, batch, rows)
        return estimates, metrics

    async def _update(
        self, step: _Step, outputs: ModelOutputs, estimates: Columns, *, trains_policy: bool
    ) -> Metrics:
        """Do all optimizer updates of one rollout batch. Losses in the metrics are means over these updates."""
        run, demands, request = self._run, self._demands, step.request
        batch = request.batch
        parts: list[Metrics] = []
        old = None if demands.rollout_as_old else outputs.columns.get("old_logprobs")
        if old is not None:
            parts.append(self._mismatch(batch, old))
        for index, minibatch in enumerate(
            minibatches(
                batch,
                outputs.columns | estimates,
                teacher_top=outputs.teacher_top,
                per_epoch=demands.updates_per_step // run.train.inner_epochs,
                epochs=run.train.inner_epochs,
                max_actions=run.rollout.max_new_tokens,
                seed=run.seed,
                step=request.step,
                judged=request.judged,
            )
        ):
            plan = self._plan(minibatch, request)
            if demands.critic and minibatch.normalizers.num_sequences:
                outcome = await self._update_role(CRITIC, minibatch.judged_batch, plan, step)
                parts.append(outcome.metrics)
            if trains_policy:
                seed = seed_of(run.seed, "prepare", request.step, index)
                data, plan = self._policy_update(minibatch, plan, seed, step)
                is_whole = minibatch.first and len(data.trajectories) == len(batch) > 0
                plan = replace(
                    plan,
                    return_logprobs=minibatch.first and old is None and len(batch) > 0,
                    return_entropies=is_whole and self._keeps_columns and not step.heard,
                    return_losses=self._keeps_columns,
                )
                outcome = await self._update_role(POLICY, data, plan, step)
                parts.append(outcome.metrics)
                if outcome.entropies is not None:
                    step.heard["entropy"] = outcome.entropies
                step.hear_losses(minibatch.rows, outcome)
                if outcome.logprobs is not None:
                    parts.append(self._mismatch(data.trajectories, outcome.logprobs))
        return merge_updates(parts)

    def _plan(self, minibatch: Minibatch, request: LearnRequest) -> StepPlan:
        return StepPlan(
            normalizers=minibatch.normalizers,
            sampled_normalizers=minibatch.sampled,
            kl_coef=request.kl_coef if self._run.algo.kl.mode == "loss" else 0.0,
            entropy_coef=request.entropy_coef,
            on_policy=minibatch.first and not self._demands.rollout_as_old,
        )

    def _policy_update(
        self, minibatch: Minibatch, plan: StepPlan, seed: int, step: _Step
    ) -> tuple[TrainBatch, StepPlan]:
        """Return the update with the inputs of the policy's losses beside the rollouts: prepared columns, and responses
        to imitate with their normalizers."""
        data, supervised = minibatch.batch, self._parts.supervised
        if self._parts.preparing_loss is not None:
            prepared = self._prepared(self._parts.preparing_loss, minibatch, seed)
            data = replace(data, columns={**data.columns, **prepared})
        if supervised is not None:
            rows = supervised.take(step.supervised_taken)
            step.supervised_taken += supervised.batch_size
            totals = normalizers_of(rows.num_actions, self._run.rollout.max_new_tokens)
            data = replace(data, supervised=rows)
            plan = replace(plan, supervised_normalizers=totals)
        return data, plan

    def _prepared(self, loss: PreparingLoss, minibatch: Minibatch, seed: int) -> Columns:
        rows, trajectories = minibatch.judged, minibatch.batch.trajectories
        if rows is None:
            return prepare(loss, minibatch.batch, seed)
        if not len(rows):
            return {}
        return _placed(prepare(loss, minibatch.judged_batch, seed), trajectories, rows)

    def _mismatch(self, batch: TrajectoryColumns, logprobs: NDArray[np.float32]) -> Metrics:
        """Return metrics of the difference between the trainer's log-probs, before any update, and the sampler's.

        Raises:
            RolloutError: the difference is above ``rollout.max_mismatch``.
        """
        lengths = torch.from_numpy(batch.num_actions)
        trainer, mask = pad_columns(torch.from_numpy(logprobs), lengths)
        sampler, _ = pad_columns(torch.from_numpy(batch.rollout_logprobs), lengths)
        with_logprobs = torch.from_numpy(has_logprobs(batch))
        metrics: Metrics = mismatch_metrics(trainer, sampler, mask & with_logprobs[:, None])
        values = metric_values(metrics)
        if self._max_mismatch is not None and "mismatch/logprob_diff_mean" in values:
            require_agreement(values["mismatch/logprob_diff_mean"], self._max_mismatch)
        return metrics

    async def _update_role(
        self, role: str, data: TrainBatch, plan: StepPlan, step: _Step
    ) -> StepOutcome:
        undo_bytes = 0 if role in step.begun else int(self._run.checkpoint.undo_gib * 2**30)
        step.begun.add(role)
        factor = step.request.lr_factors.get(role, 1.0)
        plan = replace(plan, lr_factor=factor, undo_bytes=undo_bytes)
        outcome = await self._roles[role].train_step(data, plan)
        step.skipped_updates[role] = count_skipped(
            step.skipped_updates.get(role, 0),
            outcome.metrics,
            role=role,
            limit=self._run.train.max_skipped_updates,
            look_at=f"the samples: rlhf show {self._run.output} --step {step.request.step - 1}",
        )
        return outcome


def _placed(columns: Columns, batch: TrajectoryColumns, rows: NDArray[np.int64]) -> Columns:
    """Return columns of some rows' actions among all actions of the batch, with 0 at the others."""
    place, whole = batch.action_index(rows), {}
    for name, column in columns.items():
        whole[name] = np.zeros(int(batch.num_actions.sum()), np.float32)
        whole[name][place] = column
    return whole

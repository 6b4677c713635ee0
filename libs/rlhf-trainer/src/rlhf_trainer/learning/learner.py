"""From a rollout batch to new weights: log-probs and values, advantages, updates."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_config.checks.features import renormalizes
from rlhf_config.resolved import Resolved
from rlhf_core.batch.metric import Metrics, merge_metrics, merge_updates, metric_values
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.capabilities import HEARS_TOKENS
from rlhf_core.contracts.backend import JUDGED, TRAINED, StepOutcome, StepPlan, TrainBatch
from rlhf_core.contracts.learner import LearnOutcome, LearnRequest
from rlhf_core.contracts.loss import PreparingLoss
from rlhf_core.contracts.runtime import RoleHandle
from rlhf_core.errors import RolloutError
from rlhf_core.math import highest_entropy, mismatch_metrics, pad_columns
from rlhf_core.rng import seed_of
from rlhf_core.storage.faults import fault_point

from .advantages import KlPenalty, advantages
from .demands import Demands
from .minibatches import (
    count_skipped,
    minibatches,
    normalizers_of,
    of_rows,
    prepare,
    step_data,
    totals_of,
)
from .model_outputs import Columns, ModelOutputs, ask_models, has_logprobs
from .parts import LearningParts
from .roles import CRITIC, POLICY


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
        self._label = resolved.one("algo.advantage.estimator").label
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
        run, demands, supervised = self._run, self._demands, self._parts.supervised
        columns = outputs.columns | estimates
        if run.algo.loss.top_entropy < 1.0:
            columns |= outputs.observed  # the entropies, by which each update chooses its tokens
        whole = step_data(batch, columns, outputs.teacher_top, request.judged)
        updates = minibatches(
            batch,
            per_epoch=demands.updates_per_step // run.train.inner_epochs,
            epochs=run.train.inner_epochs,
            seed=run.seed,
            step=request.step,
            judged=request.judged,
            left_out=batch.episode_truncated if run.algo.loss.mask_truncated else None,
        )
        trains_policy = not demands.critic or request.step > run.critic.warmup_steps
        imitated = supervised.batch_size if supervised is not None and trains_policy else 0
        skipped, observed = dict[str, int](), dict(outputs.observed)
        updated = await self._update(request, whole, updates, trains_policy, skipped, observed)
        return LearnOutcome(
            metrics=merge_metrics([metrics, updated]),
            score_s=estimated - started,
            train_s=time.perf_counter() - estimated,
            policy_changed=trains_policy and len(updates) > 0,
            supervised_taken=request.supervised_taken + imitated * len(updates),
            skipped_updates={**request.skipped_updates, **skipped},
            columns=columns | observed if self._keeps_columns else None,
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
            label=self._label,
        )
        if judged is not None:
            estimates = _placed(estimates, batch, rows)
        return estimates, metrics

    async def _update(
        self,
        request: LearnRequest,
        whole: TrainBatch,
        updates: Sequence[NDArray[np.int64]],
        trains_policy: bool,
        skipped: dict[str, int],
        observed: Columns,
    ) -> Metrics:
        """Do all optimizer updates of one rollout batch. Losses in the metrics are means over these updates.

        Args:
            updates: rows of each.
            skipped: gets, for each role that has an update, how many in a row were skipped.
            observed: (sum of A,) each, which observers alone read; gets entropies and losses.
        """
        run, demands, batch, judged = self._run, self._demands, request.batch, request.judged
        most, parts = run.rollout.max_new_tokens, list[Metrics]()
        syncs = run.ref.sync_every is not None and request.step % run.ref.sync_every == 0
        # Without a pass for old log-probs those of the first update are compared with the sampler's, below.
        old = None if demands.rollout_as_old else whole.columns.get("old_logprobs")
        if old is not None:
            parts.append(self._mismatch(batch, old))
        for index, rows in enumerate(updates):
            # Rows whose rewards do not count add to no total of the losses that rewards judge.
            is_first, counted = index == 0, rows if judged is None else rows[judged[rows]]
            plan = StepPlan(
                normalizers=totals_of(batch, counted, most),
                sampled_normalizers=None if judged is None else totals_of(batch, rows, most),
                kl_coef=request.kl_coef if run.algo.kl.mode == "loss" else 0.0,
                entropy_coef=request.entropy_coef,
                on_policy=is_first and not demands.rollout_as_old,
                syncs_reference=syncs and index == len(updates) - 1,
            )
            # The critic learns in the warm-up steps too, in which the policy stays as it is.
            if demands.critic and len(counted):
                data = of_rows(whole, counted)
                outcome = await self._update_role(CRITIC, data, plan, request, skipped)
                parts.append(outcome.metrics)
            if trains_policy:
                data, plan = self._policy_update(whole, rows, plan, request, index)
                # Entropies of weights that have moved, or of a part of the rows, would mislead who watches.
                is_whole = is_first and len(rows) == len(batch) > 0
                plan = replace(
                    plan,
                    return_logprobs=is_first and old is None and len(batch) > 0,
                    return_entropies=is_whole and self._keeps_columns and not observed,
                    return_losses=self._keeps_columns,
                )
                outcome = await self._update_role(POLICY, data, plan, request, skipped)
                parts.append(outcome.metrics)
                if outcome.entropies is not None:
                    observed["entropy"] = outcome.entropies
                _observe_losses(observed, batch, rows, outcome)
                if outcome.logprobs is not None:
                    parts.append(self._mismatch(data.trajectories, outcome.logprobs))
        return merge_updates(parts)

    def _policy_update(
        self,
        whole: TrainBatch,
        rows: NDArray[np.int64],
        plan: StepPlan,
        request: LearnRequest,
        index: int,
    ) -> tuple[TrainBatch, StepPlan]:
        """Return the update with the inputs of the policy's losses beside the rollouts: prepared columns, and responses
        to imitate with their normalizers."""
        data = of_rows(whole, rows)
        if (entropy := data.columns.get("entropy")) is not None:
            share, judged_tokens = self._run.algo.loss.top_entropy, data.columns.get(JUDGED)
            chosen = highest_entropy(entropy, share, judged_tokens)
            data = replace(data, columns={**data.columns, TRAINED: chosen})
        if (loss := self._parts.preparing_loss) is not None:
            seed = seed_of(self._run.seed, "prepare", request.step, index)
            judged = None if request.judged is None else request.judged[rows]
            columns = {**data.columns, **_prepared(loss, data, judged, seed)}
            data = replace(data, columns=columns)
        if (supervised := self._parts.supervised) is not None:
            given = supervised.take(request.supervised_taken + index * supervised.batch_size)
            totals = normalizers_of(given.num_actions, self._run.rollout.max_new_tokens)
            data = replace(data, supervised=given)
            plan = replace(plan, supervised_normalizers=totals)
        return data, plan

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
        self,
        role: str,
        data: TrainBatch,
        plan: StepPlan,
        request: LearnRequest,
        skipped: dict[str, int],
    ) -> StepOutcome:
        undo_bytes = 0 if role in skipped else int(self._run.checkpoint.undo_gib * 2**30)
        factor = request.lr_factors.get(role, 1.0)
        plan = replace(plan, lr_factor=factor, undo_bytes=undo_bytes)
        outcome = await self._roles[role].train_step(data, plan)
        skipped[role] = count_skipped(
            skipped.get(role, request.skipped_updates.get(role, 0)),
            outcome.metrics,
            role=role,
            limit=self._run.train.max_skipped_updates,
            look_at=f"the samples: rlhf show {self._run.output} --step {request.step - 1}",
        )
        return outcome


def require_agreement(logprob_diff_mean: float, limit: float) -> None:
    """Refuse to go on when sampler and trainer disagree about the same tokens under equal weights.

    Args:
        logprob_diff_mean: mean absolute difference of their log-probs, in nats per token.
        limit: ``rollout.max_mismatch``, in the same unit.

    Raises:
        RolloutError: the difference is above the limit.
    """
    if logprob_diff_mean <= limit:
        return
    raise RolloutError(
        f"sampler and trainer disagree about the tokens that were just sampled: their log-probs differ by "
        f"{logprob_diff_mean:.3g} nats a token on average, with equal weights; expected at most rollout.max_mismatch = "
        f"{limit:g}. One of them computes something else: another temperature, positions or tokens shifted by one, an "
        "architecture that the engine does not know, or a precision that is too low. Compare with --engine embedded "
        "and --model.dtype float32; if the difference is wanted, raise --rollout.max_mismatch or set it to none.",
        code="engine/logprobs-differ",
    )


def _observe_losses(
    observed: Columns, batch: TrajectoryColumns, rows: NDArray[np.int64], outcome: StepOutcome
) -> None:
    """Keep what an update told of its rows, in the place of what an earlier one did."""
    for name, values in (("loss", outcome.losses), ("clipped", outcome.clipped)):
        if values is not None:
            nothing = np.full(int(batch.num_actions.sum()), np.nan, np.float32)
            observed.setdefault(name, nothing)[batch.action_index(rows)] = values


def _prepared(
    loss: PreparingLoss, data: TrainBatch, judged: NDArray[np.bool_] | None, seed: int
) -> Columns:
    """Return what a loss prepares of the rows whose rewards count, with 0 at the actions of the others."""
    if judged is None:
        return prepare(loss, data, seed)
    rows = np.flatnonzero(judged)
    if not len(rows):
        return {}
    return _placed(prepare(loss, of_rows(data, rows), seed), data.trajectories, rows)


def _placed(columns: Columns, batch: TrajectoryColumns, rows: NDArray[np.int64]) -> Columns:
    """Return columns of some rows' actions among all actions of the batch, with 0 at the others."""
    place, whole = batch.action_index(rows), {}
    for name, column in columns.items():
        whole[name] = np.zeros(int(batch.num_actions.sum()), np.float32)
        whole[name][place] = column
    return whole

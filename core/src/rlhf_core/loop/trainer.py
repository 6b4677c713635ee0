"""The training loop. One page: sample, score, estimate, update, log."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..config.features import renormalizes
from ..contracts.backend import StepOutcome, StepPlan, TrainBatch
from ..contracts.metric import Metric, Metrics, merge_metrics, metric_values
from ..contracts.trajectory_columns import TrajectoryColumns
from ..errors import NonFiniteError
from ..math import adapted_entropy_coef, adapted_kl_coef, mismatch_metrics, pad_columns
from . import scoring
from .cursor import Cursor
from .faults import fault_point
from .ledger import Ledger
from .minibatches import Minibatch, minibatches, normalizers_of
from .pool import WorkDone
from .preparing import prepare
from .rng import seed_of
from .roles import CRITIC, POLICY
from .samples import sample_texts
from .served_weights import check_served_weights, require_agreement
from .session import Session
from .state import LoopState

WAITING = ("generate_s", "reward_s", "hold_s")
"""Phases in which a step waits for rollouts: for its own, for their rewards, for others to end before an update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step leaves for the records."""

    metrics: dict[str, float]
    timing: dict[str, float]
    samples: list[dict[str, Any]]
    """A few of the step's rollouts as text."""


class Trainer:
    """Does one step at a time; the state between steps is all in ``state`` and in the roles."""

    def __init__(self, session: Session, state: LoopState, cursor: Cursor, ledger: Ledger) -> None:
        self.session = session
        self.state = state
        self.cursor = cursor
        self.ledger = ledger
        self._run = session.resolved.run
        rollout = self._run.rollout
        # Samples of older weights, or of a truncated distribution, differ for good reasons.
        is_comparable = rollout.max_staleness == 0 and not renormalizes(self._run)
        self._max_mismatch = rollout.max_mismatch if is_comparable else None
        self._reward_weights = {
            selection.section.rpartition(".")[2]: selection.reward.weight
            for selection in session.resolved.selections["reward.use"]
            if selection.reward is not None
        }

    async def step(self) -> StepResult:
        """Generate, score, estimate advantages, update the roles, hand the new weights to the engine.

        Raises:
            NonFiniteError: too many updates in a row had a gradient that is not finite.
        """
        step, run, session = self.state.step + 1, self._run, self.session
        clock, before = _Clock(), session.source.work_done

        rollouts = await session.source.take(
            step,
            self.cursor,
            run.rollout.batch_size,
            max_refills=run.rollout.max_refills,
            version=self.state.version,
            ledger=self.ledger,
            steps_left=session.total_steps - step,
        )
        clock.record("generate_s", rollouts.generate_s)
        clock.record("reward_s", rollouts.reward_s)
        clock.lap()

        fault_point("score", step)
        metrics = [rollouts.metrics]
        batch = rollouts.batch
        if batch is None:
            metrics.append({"train/empty_batch": Metric(1, reduction="sum")})
        else:
            await session.source.hold_to_train()
            clock.lap("hold_s")
            scores = await scoring.score(batch, session.roles, session.demands)
            estimates, estimate_metrics = scoring.advantages(
                batch,
                scores,
                session.estimator,
                self._kl_penalty(),
                reward_weights=self._reward_weights,
                with_observations=session.demands.observations,
            )
            metrics.append(estimate_metrics)
            clock.lap("score_s")

            fault_point("train", step)
            metrics.append(await self._update(batch, scores, estimates, step))
            clock.lap("train_s")

            await session.source.hold()
            clock.lap("hold_s")
            synced = await session.engine.update_weights(
                self.state.version, session.roles[POLICY].weights()
            )
            clock.lap("sync_s")
            if run.rollout.check_weights:
                await check_served_weights(
                    session.engine, session.roles[POLICY], self.state.version
                )
                clock.lap("check_s")
            await session.source.release(self.state.version)
            if synced is not None:
                clock.record("sync_gib_per_s", synced.num_bytes / 2**30 / synced.seconds)

        values = metric_values(merge_metrics(metrics))
        self._adapt_kl(values, batch)
        self._adapt_entropy_bonus(values)
        self.state.step = step
        self.state.prompts_taken = self.cursor.taken
        self.state.in_flight = session.source.in_flight
        self.state.lengths = session.source.lengths.to_json()
        self.state.shapers = [shaper.state_dict() for shaper in session.shapers]
        timing = clock.timing(batch, session.source.work_done - before)
        self.state.seconds += timing["step_s"]
        samples = (
            sample_texts(batch, run.log.samples, session.renderer) if batch is not None else []
        )
        return StepResult(metrics=values, timing=timing, samples=samples)

    async def _update(
        self,
        batch: TrajectoryColumns,
        scores: scoring.Scores,
        estimates: Mapping[str, NDArray[np.float32]],
        step: int,
    ) -> Metrics:
        """Do all optimizer updates of one rollout batch."""
        run, demands = self._run, self.session.demands
        train_policy = not demands.critic or step > run.critic.warmup_steps
        parts: list[Metrics] = []
        old = None if demands.rollout_as_old else scores.columns.get("old_logprobs")
        if old is not None:
            parts.append(self._mismatch(batch, old))
        for index, minibatch in enumerate(
            minibatches(
                batch,
                scores.columns | dict(estimates),
                teacher_top=scores.teacher_top,
                per_epoch=demands.updates_per_step // run.train.inner_epochs,
                epochs=run.train.inner_epochs,
                max_actions=run.rollout.max_new_tokens,
                seed=run.seed,
                step=step,
            )
        ):
            if demands.critic:
                outcome = await self._update_role(CRITIC, minibatch.batch, self._plan(minibatch))
                parts.append(outcome.metrics)
            if train_policy:
                seed = seed_of(run.seed, "prepare", step, index)
                data, plan = self._policy_update(minibatch, seed)
                plan = replace(plan, return_logprobs=minibatch.first and old is None)
                outcome = await self._update_role(POLICY, data, plan)
                parts.append(outcome.metrics)
                if outcome.logprobs is not None:
                    parts.append(self._mismatch(data.trajectories, outcome.logprobs))
        if train_policy:
            self.state.version += 1
        return merge_metrics(parts)

    def _plan(self, minibatch: Minibatch) -> StepPlan:
        return StepPlan(
            normalizers=minibatch.normalizers,
            kl_coef=self.state.kl_coef if self._run.algo.kl.mode == "loss" else 0.0,
            entropy_coef=self._entropy_coef(),
            on_policy=minibatch.first and not self.session.demands.rollout_as_old,
        )

    def _policy_update(self, minibatch: Minibatch, seed: int) -> tuple[TrainBatch, StepPlan]:
        """Add what the policy's losses have beside the rollouts: prepared columns, responses to imitate."""
        data, plan, session = minibatch.batch, self._plan(minibatch), self.session
        if session.preparing_loss is not None:
            prepared = prepare(session.preparing_loss, data, seed)
            data = replace(data, columns={**data.columns, **prepared})
        if session.supervised is not None:
            rows = session.supervised.take(self.state.supervised_taken)
            self.state.supervised_taken += session.supervised.batch_size
            totals = normalizers_of(rows.num_actions, self._run.rollout.max_new_tokens)
            data = replace(data, supervised=rows)
            plan = replace(plan, supervised_normalizers=totals)
        return data, plan

    def _mismatch(self, batch: TrajectoryColumns, logprobs: NDArray[np.float32]) -> Metrics:
        """How far the trainer's log-probs are from the sampler's before any update."""
        lengths = torch.from_numpy(batch.num_actions)
        trainer, mask = pad_columns(torch.from_numpy(logprobs), lengths)
        sampler, _ = pad_columns(torch.from_numpy(batch.rollout_logprobs), lengths)
        with_logprobs = torch.from_numpy(scoring.has_logprobs(batch))
        metrics: Metrics = mismatch_metrics(trainer, sampler, mask & with_logprobs[:, None])
        values = metric_values(metrics)
        if self._max_mismatch is not None and "mismatch/logprob_diff_mean" in values:
            require_agreement(values["mismatch/logprob_diff_mean"], self._max_mismatch)
        return metrics

    async def _update_role(self, role: str, data: TrainBatch, plan: StepPlan) -> StepOutcome:
        outcome = await self.session.roles[role].train_step(data, plan)
        skipped = outcome.metrics.get("train/skipped_updates")
        in_a_row = 0
        if skipped is not None and skipped.value():
            in_a_row = self.state.skipped_updates.get(role, 0) + 1
        self.state.skipped_updates[role] = in_a_row
        if in_a_row >= self._run.train.max_skipped_updates:
            raise NonFiniteError(
                f"{in_a_row} updates of the {role} in a row had a gradient that is not finite; its weights are "
                f"those of the last good update. Lower its learning rate, or look at the samples: "
                f"rlhf show {self._run.output} --step {self.state.step}"
            )
        return outcome

    def _kl_penalty(self) -> scoring.KlPenalty | None:
        kl = self._run.algo.kl
        if kl.coef == 0 or kl.mode != "reward":
            return None
        return scoring.KlPenalty(coef=self.state.kl_coef, estimator=kl.estimator)

    def _adapt_kl(self, values: dict[str, float], batch: TrajectoryColumns | None) -> None:
        kl = self._run.algo.kl
        if kl.coef == 0:
            return
        values["kl/coef"] = self.state.kl_coef
        if kl.target is not None and batch is not None and "kl/ref" in values:
            self.state.kl_coef = adapted_kl_coef(
                self.state.kl_coef,
                values["kl/ref"],
                target=kl.target,
                num_samples=len(batch),
                horizon=kl.horizon,
            )

    def _entropy_coef(self) -> float:
        """The entropy bonus in force: an adapted one rests while the entropy is above its target."""
        target, entropy = self._run.algo.loss.entropy_target, self.state.entropy
        if target is not None and entropy is not None and entropy > target:
            return 0.0
        return self.state.entropy_coef

    def _adapt_entropy_bonus(self, values: dict[str, float]) -> None:
        loss = self._run.algo.loss
        if loss.entropy_target is None:
            return
        values["policy/entropy_coef"] = self._entropy_coef()
        if "policy/entropy" in values:
            self.state.entropy = values["policy/entropy"]
            self.state.entropy_coef = adapted_entropy_coef(
                self.state.entropy_coef,
                self.state.entropy,
                target=loss.entropy_target,
                step=loss.entropy_step,
            )


class _Clock:
    """Seconds per phase of one step."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self._seconds: dict[str, float] = {}

    def record(self, phase: str, seconds: float) -> None:
        self._seconds[phase] = seconds

    def lap(self, phase: str | None = None) -> None:
        """Attribute the time since the last lap to ``phase``, or to nothing."""
        now = time.perf_counter()
        if phase is not None:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def timing(self, batch: TrajectoryColumns | None, generated: WorkDone) -> dict[str, float]:
        """Seconds, shares and rates of the step, in which so much was generated, for it or for later ones."""
        step_s = time.perf_counter() - self._start
        waited_s = sum(self._seconds.get(phase, 0.0) for phase in WAITING)
        seconds = self._seconds | {
            "step_s": step_s,
            "engine_idle_share": max(0.0, 1 - generated.seconds / step_s),
            "trainer_idle_share": min(1.0, waited_s / step_s),
        }
        if generated.num_tokens:
            seconds["generate_tokens_per_s"] = generated.num_tokens / max(generated.seconds, 1e-9)
        if batch is not None:
            trained = int(batch.num_tokens.sum())
            seconds["train_tokens_per_s"] = trained / max(seconds["train_s"], 1e-9)
        return {name: round(value, 6) for name, value in seconds.items()}

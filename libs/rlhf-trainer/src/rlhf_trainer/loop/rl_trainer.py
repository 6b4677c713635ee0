"""The training loop on one page: what a run begins with; then sample, learn, deliver the new weights, log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import AsyncExitStack, closing
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.metric import Metric, merge_metrics, metric_values
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts.engine import WeightSync
from rlhf_core.contracts.learner import LearnOutcome, LearnRequest
from rlhf_core.errors import PluginError
from rlhf_core.math import adapted_entropy_coef, adapted_kl_coef
from rlhf_core.storage.faults import fault_point
from rlhf_core.storage.run_folder import RunFolder

from ..durable.records import Ledger, RecordFile, RunningDigest
from ..learning.roles import POLICY, REFERENCE, TEACHER
from ..rollouts.prompts import Cursor
from ..rollouts.reports import sample_texts
from ..rollouts.settling import EmptySteps
from ..rollouts.source import check_served_weights
from .restore import check_epoch, restore_components, restore_roles
from .resume import ResumePoint
from .run_kind import Export, FinishedStep, OwnRecord, SavedRole
from .session import Session
from .state import LoopState

WAITING = ("generate_s", "reward_s", "hold_s")
"""Phases in which the trainer waits: for the step's episodes, for their rewards, and for episodes of later steps to end
before weights change."""


class RLTrainer:
    """See ``run_kind.Trainer``. All state between steps is in ``state``, in the roles and in the records."""

    def __init__(self, session: Session, state: LoopState, folder: RunFolder) -> None:
        self.session = session
        self.state = state
        self._run = session.resolved.run
        self._folder = folder

    @property
    def total_steps(self) -> int:
        return self.session.total_steps

    @property
    def saved_roles(self) -> Mapping[str, SavedRole]:
        # Reference and teacher never change and are loaded anew.
        roles = self.session.roles.items()
        saved = {name: role for name, role in roles if name not in (REFERENCE, TEACHER)}
        sleeping = self.session.sleeping
        return saved if sleeping is None else sleeping.saved(saved, self.state.step)

    @property
    def records(self) -> Mapping[str, OwnRecord]:
        return {
            self._folder.ledger.name: self.ledger,
            self._folder.eval_samples.name: self._eval_samples,
        }

    @property
    def exports(self) -> Sequence[Export]:
        policy = self.saved_roles[POLICY]
        exports = [Export(role=policy, folder=self._folder.model)]
        if self._run.actor.ema is not None:
            exports.append(Export(role=policy, folder=self._folder.ema_model, ema=True))
        return exports

    @property
    def headline(self) -> str | None:
        evaluator = self.session.evaluator
        return None if evaluator is None else evaluator.headline

    async def begin(
        self,
        point: ResumePoint[Any] | None,
        begun: Mapping[str, RunningDigest],
        stack: AsyncExitStack,
    ) -> None:
        session, run = self.session, self._run
        ledger, played = self._folder.ledger, self._folder.eval_samples
        self.ledger = Ledger(ledger, begun.get(ledger.name))
        self._eval_samples = RecordFile(played, begun.get(played.name))
        for record in (self.ledger, self._eval_samples):
            stack.enter_context(closing(record))
        if run.resume.checkpoint is not None or self.ledger.extent.num_bytes:
            self.ledger.resumed(self.state.step)
        self._empty_steps = EmptySteps(run.train.max_empty_steps, self.state.empty_steps)
        check_epoch(self.state, len(session.tasks), session.num_supervised)
        if point is not None:
            await restore_roles(point, session.resolved, self.saved_roles)
            await self._serve()
            session.source.lengths.load(self.state.lengths)
            restore_components(
                point,
                session.resolved,
                shapers=session.shapers,
                rows=session.rows,
                sampler=session.sampler,
            )
        self.cursor = Cursor(
            session.tasks,
            run.seed,
            epochs=None if run.train.steps is not None else run.train.epochs,
            taken=self.state.prompts_taken,
            sampler=session.sampler,
            last_epochs=self.state.last_epochs,
        )
        if point is not None:
            self._restart_in_flight(has_ledger=ledger.name in point.records)

    def _restart_in_flight(self, *, has_ledger: bool) -> None:
        """Start the groups again that were in flight when the checkpoint was written.

        Args:
            has_ledger: False: the ledger is new. The lines that planned these groups are in another run's, or in one
                that was set aside.
        """
        session, in_flight = self.session, self.state.in_flight
        if not in_flight or self.state.step >= session.total_steps:
            return
        if not has_ledger:
            count = self._run.rollout.n_samples_per_prompt
            groups = {(epoch, prompt): count for epoch, prompt in in_flight}
            self.ledger.planned(self.state.step, groups)
        tasks = [session.tasks.task(prompt, epoch) for epoch, prompt in in_flight]
        session.source.restore(tasks, self.state.step, self.state.version)

    async def step(self) -> FinishedStep:
        """Generate, estimate advantages, update the roles, hand the new weights to the engine.

        Raises:
            NonFiniteError: see ``Learner.learn``.
            EmptyStepsError: too many steps in a row had no update.
        """
        step, run, session = self.state.step + 1, self._run, self.session
        sleeping = session.sleeping
        if session.drawn is not None:
            session.drawn.step_begins()
        clock, (busy_s, num_tokens) = _Clock(), session.source.work_done

        # Episodes with their rewards, shaped and filtered.
        if sleeping is not None:
            await sleeping.for_engine(self.state.version)
        draw = await session.source.take(
            step,
            self.cursor,
            run.rollout.batch_size,
            max_refills=run.rollout.max_refills,
            version=self.state.version,
            ledger=self.ledger,
            steps_left=session.total_steps - step,
        )
        clock.record("generate_s", draw.generate_s)
        clock.record("reward_s", draw.reward_s)
        clock.lap()

        # Updates, and the new weights for the engine; nothing of it where every group was dropped.
        fault_point("model_outputs", step)
        metrics = [draw.metrics]
        batch = draw.batch
        columns = None
        to_learn = draw.to_learn(trains_unjudged=session.demands.trains_unjudged)
        if to_learn is None:
            metrics.append({"train/empty_batch": Metric(1, reduction="sum")})
        else:
            outcome = await self._learn(self._request(step, *to_learn), draw.metrics.keys(), clock)
            metrics.append(outcome.metrics)
            columns = outcome.columns
            await self._deliver(clock)

        # What later steps depend on follows from the metrics of the whole step.
        if sleeping is not None:
            for phase, seconds in sleeping.take_seconds().items():
                clock.record(phase, seconds)
        values = metric_values(merge_metrics(metrics))
        learned = batch is not None or (to_learn is not None and session.demands.learns_unjudged)
        if run.algo.loss.mask_truncated and values.get("response/truncated") == 1.0:
            learned = False
        self._empty_steps.note(step, values, updated=learned)
        values |= {f"{role}/lr_factor": value for role, value in self.state.lr_factors.items()}
        self._adapt_kl(values, batch)
        self._adapt_entropy_bonus(values)
        self._remember(step)

        # What the driver records of the step.
        busy_after_s, num_after = session.source.work_done
        timing = clock.timing(batch, busy_after_s - busy_s, num_after - num_tokens)
        self.state.seconds += timing["step_s"]
        samples = []
        if batch is not None:
            samples = sample_texts(batch, run.log.samples, session.renderer, columns)
        if session.drawn is not None:
            await asyncio.to_thread(session.drawn.clean)
        return FinishedStep(metrics=values, timing=timing, samples=samples)

    async def _learn(self, request: LearnRequest, taken: Set[str], clock: _Clock) -> LearnOutcome:
        """Update the roles, while no engine computes with their weights.

        Args:
            taken: names of the metrics that the step has already.
        """
        session, sleeping = self.session, self.session.sleeping
        await session.source.hold_to_train()
        clock.lap("hold_s")
        if sleeping is not None:
            # What was started beside the batch may still be ending.
            await session.source.hold()
            await sleeping.for_roles(request.step)
        outcome = await session.learner.learn(request)
        if twice := sorted(taken & outcome.metrics.keys()):
            raise PluginError(
                f"{', '.join(twice)}: a metric of the estimator or of a loss has the name of one of the run's; "
                "choose another name",
                code="metric/name-taken",
            )
        self.state.version += outcome.policy_changed
        self.state.supervised_taken = outcome.supervised_taken
        self.state.skipped_updates = dict(outcome.skipped_updates)
        clock.record("score_s", outcome.score_s)
        clock.record("train_s", outcome.train_s)
        clock.lap()
        return outcome

    async def evaluate(self) -> Mapping[str, float] | None:
        evaluator, sleeping = self.session.evaluator, self.session.sleeping
        if evaluator is None:
            return None
        if sleeping is not None:
            await sleeping.for_engine(self.state.version)
        metrics, samples = await evaluator.run(self.state.step)
        for sample in samples:
            self._eval_samples.write({"step": self.state.step, **sample})
        return metrics

    async def _deliver(self, clock: _Clock) -> None:
        """Hand the new weights to the engine, while no group is being played."""
        run, session, version = self._run, self.session, self.state.version
        await session.source.hold()
        clock.lap("hold_s")
        synced, sync_s = await self._serve()
        clock.record("sync_s", sync_s)
        clock.lap()
        if run.rollout.check_weights:
            await check_served_weights(session.engine, session.roles[POLICY], version)
            clock.lap("check_s")
        await session.source.release(version)
        if synced is not None:
            clock.record("sync_gib_per_s", synced.num_bytes / 2**30 / synced.seconds)

    async def _serve(self) -> tuple[WeightSync | None, float]:
        """Give the engine the policy's weights, and return what it says of them and the seconds that it took."""
        session, version = self.session, self.state.version
        if session.sleeping is not None:
            return await session.sleeping.deliver(version)
        started = time.perf_counter()
        synced = await session.engine.update_weights(version, session.roles[POLICY].weights())
        return synced, time.perf_counter() - started

    def _remember(self, step: int) -> None:
        """Put what the next step depends on into the state."""
        session = self.session
        self.state.step = step
        self.state.empty_steps = self._empty_steps.in_a_row
        self.state.prompts_taken = self.cursor.taken
        if session.rows is not None:
            self.state.source = deepcopy(session.rows.state_dict())
        self.state.sampler = self.cursor.sampler_state
        self.state.last_epochs = self.cursor.last_epochs
        self.state.in_flight = session.source.in_flight
        self.state.lengths = session.source.lengths.to_json()
        self.state.shapers = [shaper.state_dict() for shaper in session.shapers]

    def _request(
        self, step: int, batch: TrajectoryColumns, judged: NDArray[np.bool_] | None
    ) -> LearnRequest:
        return LearnRequest(
            step=step,
            batch=batch,
            judged=judged,
            kl_coef=self.state.kl_coef,
            entropy_coef=self._entropy_coef(),
            supervised_taken=self.state.supervised_taken,
            skipped_updates=self.state.skipped_updates,
            lr_factors=dict(self.state.lr_factors),
        )

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
                num_samples=int(batch.episode.max()) + 1,
                horizon=kl.horizon,
            )

    def _entropy_coef(self) -> float:
        """Return the entropy bonus's coefficient; an adapted one counts as 0 while the entropy is above its target."""
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

    def timing(
        self, batch: TrajectoryColumns | None, busy_s: float, num_generated: int
    ) -> dict[str, float]:
        """Return seconds, shares and rates of the step.

        Args:
            busy_s: time during the step in which a group was being played, for it or for later steps.
            num_generated: tokens of the groups that ended meanwhile.
        """
        step_s = time.perf_counter() - self._start
        waited_s = sum(self._seconds.get(phase, 0.0) for phase in WAITING)
        seconds = self._seconds | {
            "step_s": step_s,
            "engine_idle_share": max(0.0, 1 - busy_s / step_s),
            "trainer_idle_share": min(1.0, waited_s / step_s),
        }
        if num_generated:
            seconds["generate_tokens_per_s"] = num_generated / max(busy_s, 1e-9)
        if batch is not None:
            trained = int(batch.num_tokens.sum())
            seconds["train_tokens_per_s"] = trained / max(seconds["train_s"], 1e-9)
        return {name: round(value, 6) for name, value in seconds.items()}

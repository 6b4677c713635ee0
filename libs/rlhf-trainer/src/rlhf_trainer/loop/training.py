"""The kind of run of ``rlhf train``: its trainer's steps, its ledger of samples, and resuming both."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, closing
from typing import Any

from rlhf_config.resolved import Resolved
from rlhf_config.trained_roles import OPTIONS_OF_PARTS
from rlhf_core.errors import CheckpointError, ResumeError
from rlhf_core.plugins import Plugins
from rlhf_core.storage.run_folder import RunFolder

from ..durable.ledger import Ledger, replay
from ..durable.records import Extent, RecordFile, RunningDigest
from ..learning.roles import POLICY, REFERENCE, TEACHER
from ..rollouts.prompts import Cursor
from .course import Export, FinishedStep, OwnRecord, RunKind, SavedRole
from .restore import restore_components, restore_roles
from .resume import ResumePoint, ResumeRules
from .session import Session, open_session
from .state import LoopState, adopt_options, initial_state
from .trainer import Trainer

BINDING = (
    "seed",
    "model",
    "data",
    "rollout.n_samples_per_prompt",
    "rollout.batch_size",
    "reward.shapers",
    *("actor.optim", "actor.adapter", *OPTIONS_OF_PARTS),
    *("critic.optim", "critic.adapter", "critic.path"),
    "env.use",
    "supervised.data",
    "supervised.prompt_key",
    "supervised.response_key",
    "eval.fraction",
)
"""Options that a checkpoint's state depends on. The shares of environments, which divide the tasks among them, are too
(``resume.bound_sections``)."""


class TrainingCourse:
    """See ``course.Course``: generate, learn, deliver the new weights, step by step."""

    def __init__(self, session: Session, state: LoopState, folder: RunFolder) -> None:
        self.state = state
        self._session = session
        self._config = session.resolved.run
        self._folder = folder

    @property
    def total_steps(self) -> int:
        return self._session.total_steps

    @property
    def saved_roles(self) -> Mapping[str, SavedRole]:
        # Reference and teacher never change and are loaded anew.
        roles = self._session.roles.items()
        saved = {name: role for name, role in roles if name not in (REFERENCE, TEACHER)}
        sleeping = self._session.sleeping
        return sleeping.saved(saved, self.state.step) if sleeping.moves else saved

    @property
    def records(self) -> Mapping[str, OwnRecord]:
        return {
            self._folder.ledger.name: self._ledger,
            self._folder.eval_samples.name: self._eval_samples,
        }

    @property
    def exports(self) -> Sequence[Export]:
        policy = self.saved_roles[POLICY]
        exports = [Export(role=policy, folder=self._folder.model)]
        if self._config.actor.ema is not None:
            exports.append(Export(role=policy, folder=self._folder.ema_model, ema=True))
        return exports

    @property
    def headline(self) -> str | None:
        evaluator = self._session.evaluator
        return None if evaluator is None else evaluator.headline

    async def begin(
        self,
        point: ResumePoint[Any] | None,
        begun: Mapping[str, RunningDigest],
        stack: AsyncExitStack,
    ) -> None:
        session, config = self._session, self._config
        ledger, played = self._folder.ledger, self._folder.eval_samples
        self._ledger = Ledger(ledger, begun.get(ledger.name))
        self._eval_samples = RecordFile(played, begun.get(played.name))
        for record in (self._ledger, self._eval_samples):
            stack.enter_context(closing(record))
        if config.resume.checkpoint is not None or self._ledger.extent.num_bytes:
            self._ledger.resumed(self.state.step)
        check_epoch(self.state, len(session.tasks))
        if point is not None:
            await restore_roles(point, session.resolved, self.saved_roles)
            await session.sleeping.deliver(self.state.version)
            session.source.lengths.load(self.state.lengths)
            restore_components(
                point,
                session.resolved,
                shapers=session.shapers,
                rows=session.rows,
                sampler=session.sampler,
            )
        cursor = Cursor(
            session.tasks,
            config.seed,
            epochs=None if config.train.steps is not None else config.train.epochs,
            taken=self.state.prompts_taken,
            sampler=session.sampler,
            last_epochs=self.state.last_epochs,
        )
        if point is not None:
            self._restart_in_flight(has_ledger=ledger.name in point.records)
        self._trainer = Trainer(session, self.state, cursor, self._ledger)

    def _restart_in_flight(self, *, has_ledger: bool) -> None:
        """Start the groups again that were in flight when the checkpoint was written.

        Args:
            has_ledger: False: the ledger is new. The lines that planned these groups are in another run's, or in one
                that was set aside.
        """
        session, in_flight = self._session, self.state.in_flight
        if not in_flight or self.state.step >= session.total_steps:
            return
        if not has_ledger:
            count = self._config.rollout.n_samples_per_prompt
            groups = {(epoch, prompt): count for epoch, prompt in in_flight}
            self._ledger.planned(self.state.step, groups)
        tasks = [session.tasks.task(prompt, epoch) for epoch, prompt in in_flight]
        session.source.restore(tasks, self.state.step, self.state.version)

    async def step(self) -> FinishedStep:
        drawn = self._session.drawn
        if drawn is None:
            return await self._trainer.step()
        drawn.step_begins()
        finished = await self._trainer.step()
        await asyncio.to_thread(drawn.clean)
        return finished

    async def evaluate(self) -> Mapping[str, float] | None:
        evaluator = self._session.evaluator
        if evaluator is None:
            return None
        await self._session.sleeping.for_engine(self.state.version)
        evaluation = await evaluator.run(self.state.step)
        for sample in evaluation.samples:
            self._eval_samples.write({"step": self.state.step, **sample})
        return evaluation.metrics


def check_epoch(state: LoopState, num_prompts: int) -> None:
    """Compare the number of a run's prompts with that of the checkpoint, and keep it in the state.

    Raises:
        ResumeError: they differ, so that the run's place among them means something else now.
    """
    if state.num_prompts not in (0, num_prompts):
        raise ResumeError(
            f"expected {state.num_prompts} prompts in an epoch, as there were when the checkpoint was made; now there "
            f"are {num_prompts}. Options of data and environments that decide how many there are cannot change: set "
            "them back, or start a new run in another --output.",
            code="resume/data-changed",
        )
    state.num_prompts = num_prompts


def check_books(folder: RunFolder, state: LoopState, records: Mapping[str, Extent]) -> None:
    """Compare the groups that are in flight by the state with those that the ledger has neither trained nor dropped.

    Args:
        records: the records that go on, by file name; a ledger that starts over is not compared.

    Raises:
        CheckpointError: they differ.
    """
    extent = records.get(folder.ledger.name)
    if extent is None:
        return
    balance = replay(folder.ledger, num_bytes=extent.num_bytes)
    in_flight = {f"{epoch}.{prompt}" for epoch, prompt in state.in_flight}
    for group in sorted(in_flight ^ set(balance.unsettled()))[:1]:
        expected = "in flight" if group in in_flight else "settled"
        raise CheckpointError(
            f"{folder.ledger} does not balance at step {state.step}: group {group}, which should be {expected}, was "
            f"planned {balance.planned[group]}, trained {balance.trained[group]} and dropped "
            f"{balance.dropped[group]} times",
            code="checkpoint/unbalanced-ledger",
        )


async def _open(
    resolved: Resolved, plugins: Plugins, folder: RunFolder, state: LoopState, stack: AsyncExitStack
) -> TrainingCourse:
    return TrainingCourse(await open_session(resolved, plugins, stack), state, folder)


TRAINING = RunKind(
    initial_state=initial_state,
    resuming=ResumeRules(
        state=LoopState,
        binding=BINDING,
        records=("ledger.jsonl", "eval_samples.jsonl"),
        check_books=check_books,
        adopt_options=adopt_options,
    ),
    open=_open,
)

"""One run of any kind from start to end: claim the run folder, build, resume, step, record, save, export."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic

from rlhf_config import write_toml
from rlhf_config.common import RunOptions
from rlhf_config.input_digests import comparable, input_digests
from rlhf_config.resolved import ResolvedOptions, RunT
from rlhf_core.component import name_component
from rlhf_core.errors import CheckpointError, RLHFError
from rlhf_core.observer import RolloutSample, RunInfo, RunResult
from rlhf_core.plugins import Plugins
from rlhf_core.problem import headline
from rlhf_core.storage.atomic import set_aside
from rlhf_core.storage.faults import fault_point
from rlhf_core.storage.run_folder import RESTART, RunFolder, claim, complete
from rlhf_core.storage.writing import reason_of
from rlhf_guard.concurrency import run_to_its_end
from rlhf_guard.environments.chosen import versions_of

from ..durable import checkpoint
from ..durable.plugin_record import append_to_history, record_of, report_changes
from ..durable.records import RecordFile, RunningDigest
from ..durable.run_log import Notes, run_log
from .interrupts import Interrupts
from .listeners import Loggers, Observers, build_loggers, build_observers, observe
from .old_objects import OldObjects
from .restore import restore_observers
from .resume import ResumePoint, StateT, find_resume_point
from .run_kind import (
    Control,
    FinishedStep,
    OwnRecord,
    RunKind,
    Trainer,
    export_models,
    go_back,
    headline_of,
)
from .state import Best, evaluated_on, note_best

log = logging.getLogger(__name__)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def drive(
    kind: RunKind[RunT, StateT],
    resolved: ResolvedOptions[RunT],
    plugins: Plugins,
    control: Control | None = None,
) -> RunResult:
    """Run a whole run of a kind and return how it ended.

    Args:
        control: steers the run from outside; None: only signals can end it early.

    Raises:
        RLHFError: the run could not start, or failed; its results so far are in the run folder. The last whole step is
            saved if the failure left it whole, and ``--resume auto`` continues from the newest checkpoint.
    """
    folder = RunFolder(Path(resolved.run.output))
    resume = resolved.run.resume.checkpoint is not None
    with claim(folder, resume=resume), run_log(folder.log, plugins) as notes:
        for choice in resolved.choices:
            log.info("%s", choice)
        for caution in resolved.cautions:
            log.warning("%s", caution)
        if resolved.run.resume.checkpoint == RESTART and (earlier := folder.set_run_aside()):
            log.info("starts over; the files of the run that was here are kept in %s", earlier)
        told = resolved.run.log
        loggers = Loggers(
            build_loggers(resolved), samples_every=told.samples_every, wait_s=told.wait_s
        )
        observers = Observers(build_observers(resolved))
        inputs = input_digests(resolved.inputs)
        point = find_resume_point(resolved, folder, kind.resuming)
        if point is not None:
            strict = resolved.run.resume.strict
            before = point.made_with.get("inputs", {})
            now = record_of(plugins, comparable(inputs, before, resolved.inputs))
            report_changes(point.made_with, now, checkpoint=point.path, strict=strict)
        try:
            run = _Run(
                kind, resolved, plugins, inputs, folder, point, notes, loggers, observers, control
            )
            return run_to_its_end(run.main())
        finally:
            # Outside of the event loop, so that Ctrl-C ends the wait.
            loggers.wait()


@dataclass(eq=False)
class _Run(Generic[RunT, StateT]):
    """The driver around a trainer: records, observers, evaluation, checkpoints."""

    kind: RunKind[RunT, StateT]
    resolved: ResolvedOptions[RunT]
    plugins: Plugins
    inputs: Mapping[str, str]
    folder: RunFolder
    point: ResumePoint[StateT] | None
    notes: Notes
    loggers: Loggers
    observers: Observers
    control: Control | None

    def __post_init__(self) -> None:
        self.config: RunOptions = self.resolved.run
        self.evaluated_on = evaluated_on(self.resolved, self.inputs)
        self.interrupts = Interrupts(
            "the run saves a checkpoint and ends after this step; Ctrl-C or SIGTERM again ends it at once"
        )
        self.state = self.point.state if self.point else self.kind.initial_state(self.resolved.run)
        self.saved_step = self.state.step
        """The step of the newest checkpoint; at first that of the resume point."""
        self.started = self.saved_at = time.perf_counter()

    async def main(self) -> RunResult:
        result: RunResult | None = None
        if self.control is not None and (task := asyncio.current_task()) is not None:
            self.control.began(task)
        try:
            async with AsyncExitStack() as stack:
                result = await self._train(stack)
                return result
        except BaseException as error:
            message = self.interrupts.at_once or headline(error)
            chosen = (one.registered for many in self.resolved.selections.values() for one in many)
            if owner := name_component(error, chosen):
                message = f"{message} ({owner})"
            result = self._result("failed", message)
            log.info("the run failed: %s", message, exc_info=True)
            raise
        finally:
            if result is not None:
                self.loggers.finish(result)
                self._tell("run_end", result=result)

    async def _train(self, stack: AsyncExitStack) -> RunResult:
        stack.enter_context(self.interrupts)
        old_objects = stack.enter_context(closing(OldObjects()))
        trainer = await self._begin(stack)
        self._write_header()
        info = RunInfo(
            output=self.folder.root,
            config=self.resolved.tree,
            command=self.resolved.command,
            total_steps=trainer.total_steps,
            start_step=self.state.step,
            # Who started the run has printed the choices before anything was built.
            notes=tuple(n for n in self.notes.taken() if n not in self.resolved.choices),
        )
        log.info(self.config.checkpoint.described(evaluates=headline_of(trainer) is not None))
        self._tell("run_start", run=info)
        self.loggers.start(info)
        self._keep_whole_step(trainer)
        try:
            return await self._go_on(trainer, old_objects)
        except (Exception, SystemExit) as error:
            await self._save_after(error, trainer)
            raise

    async def _go_on(self, trainer: Trainer, old_objects: OldObjects) -> RunResult:
        """Do the steps that are left."""
        if self.state.step == 0 and self.config.eval.at_start:
            await self._evaluate(trainer)
        while not self._is_over(trainer):
            if self.control is not None:
                await self.control.before_step(self.state)
                if reason := self.control.stop_reason:
                    return await self._stop(trainer, reason)
            old_objects.step_begins()
            self._record_step(await trainer.step())
            self._keep_whole_step(trainer)
            last = self._is_over(trainer)
            is_best, bests = False, self.state.bests
            if _is_due(self.state.step, self.config.eval.every) or last:
                is_best = await self._evaluate(trainer)
                last = self._is_over(trainer)
                self._keep_whole_step(trainer)
            if self._checkpoint_is_due() or is_best or (last and self.config.checkpoint.at_end):
                await self._save_if_possible(trainer, bests)
            if (reason := self._stop_reason()) and not last:
                return await self._stop(trainer, reason)
        if self.config.checkpoint.export:
            await export_models(trainer.exports, self.state.step)
        return self._result("finished", self.state.end)

    def _tell(self, event: str, **arguments: Any) -> None:
        """Tell the observer hooks of all plugins, and then the run's observers, of an event."""
        observe(self.plugins, f"rlhf_{event}", **arguments)
        self.observers.tell(event, **arguments)

    def _is_over(self, trainer: Trainer) -> bool:
        """Return whether no step is left to do. An observer's wish to end the run before is recorded here, once."""
        if self.state.step >= trainer.total_steps:
            return True
        ending = self.observers.ending
        if ending is not None and not self.state.end:
            self.state.ended_by, self.state.end = ending.name, ending.message
            self._write_metrics(end=ending.message)
        return bool(self.state.end)

    def _stop_reason(self) -> str | None:
        """Return the signal or the wish by which the run is to end before its last step; None: it goes on."""
        wish = None if self.control is None else self.control.stop_reason
        return self.interrupts.requested or wish

    async def _stop(self, trainer: Trainer, reason: str) -> RunResult:
        """Save what is not saved, and return the result of a run that can be resumed."""
        if self.saved_step != self.state.step:
            self._keep_whole_step(trainer)
            await self._save(trainer)
        return self._result("interrupted", f"stopped by {reason}; continue with --resume auto")

    def _checkpoint_is_due(self) -> bool:
        """Return whether the steps or, without a number of them, the minutes since the last checkpoint are over."""
        options = self.config.checkpoint
        if options.every:
            return _is_due(self.state.step, options.every)
        waited_s = time.perf_counter() - self.saved_at
        return options.every_minutes > 0 and waited_s >= 60 * options.every_minutes

    async def _begin(self, stack: AsyncExitStack) -> Trainer:
        """Build everything, and bring roles, records and cursor to the state of the resume point."""
        trainer = await self.kind.open(self.resolved, self.plugins, self.folder, self.state, stack)
        begun = self._take_up_records()
        self.metrics, self.samples = (
            stack.enter_context(closing(RecordFile(path, begun.get(path.name))))
            for path in (self.folder.metrics, self.folder.samples)
        )
        await trainer.begin(self.point, begun, stack)
        self.records: dict[str, OwnRecord] = {
            **trainer.records,
            self.folder.metrics.name: self.metrics,
            self.folder.samples.name: self.samples,
        }
        if self.point is not None:
            past_end = self.config.resume.past_end
            restore_observers(self.point, self.observers, past_end=past_end)
        return trainer

    def _take_up_records(self) -> Mapping[str, RunningDigest]:
        """Set damaged records and void checkpoints aside; return the digests of the records that go on, by name."""
        if self.point is None:
            return {}
        for name in self.point.damaged:
            path = self.folder.root / name
            if path.exists():
                log.warning("%s is damaged; it is kept as %s", path, set_aside(path).name)
        checkpoint.void_later(self.folder.checkpoints, self.state.step)
        return self.point.records

    def _write_header(self) -> None:
        """Write the configuration and the plugins' versions, with which the run can be repeated, beside its results."""
        write_toml(self.resolved, self.folder.config)
        environments = versions_of(self.resolved.selections.get("env.use", ()))
        record = record_of(self.plugins, self.inputs, environments)
        append_to_history(self.folder.plugins, record, step=self.state.step)

    def _record_step(self, result: FinishedStep) -> None:
        step = self.state.step
        if result.samples is not None:
            self._record_samples(step, result.samples, result.metrics)
        self._write_metrics(metrics=result.metrics, timing=result.timing)
        flat = {**result.metrics} | {
            f"timing/{name}": value for name, value in result.timing.items()
        }
        self._tell("step_end", step=step, metrics=flat)
        self.loggers.log_metrics(step, flat)

    def _write_metrics(self, **entries: Any) -> None:
        place = {"step": self.state.step, "time_s": round(self.state.seconds, 6)}
        self.metrics.write({**place, **entries})

    def _record_samples(
        self, step: int, samples: Sequence[Mapping[str, Any]], metrics: Mapping[str, float]
    ) -> None:
        for sample in samples:
            plain = {name: value for name, value in sample.items() if name != "tokens"}
            self.samples.write({"step": step, **plain})
        texts = [RolloutSample.recorded(sample, self.folder.root) for sample in samples]
        self._tell("rollout_end", step=step, samples=texts, metrics=metrics)
        self.loggers.log_samples(step, texts)

    async def _evaluate(self, trainer: Trainer) -> bool:
        """Evaluate, record the results, and return whether this is the best model so far."""
        values = await trainer.evaluate()
        if values is None:
            return False
        self._write_metrics(eval=values)
        self._tell("eval_end", step=self.state.step, metrics=values)
        self.loggers.log_metrics(self.state.step, values)
        options, headline = self.config.checkpoint, headline_of(trainer)
        return note_best(self.state, values, options, self.evaluated_on, headline)

    def _keep_whole_step(self, trainer: Trainer) -> None:
        """Keep what is now between two steps, for a checkpoint that may be written of it later."""
        self.state.observers = self.observers.state()
        # The trainer replaces what its state holds, so a copy of it stays so.
        self.whole = copy.copy(self.state)
        """The state at the last whole step."""
        self.extents = {name: record.extent for name, record in self.records.items()}
        """The length of each record there, by file name."""
        self.changes = {
            name: getattr(role, "changes", None) for name, role in trainer.saved_roles.items()
        }
        """See ``go_back``."""

    async def _save_after(self, error: BaseException, trainer: Trainer) -> None:
        """Save the last whole step of a run that failed, if it is not saved and the roles still have it or undo what
        came later."""
        step = self.whole.step
        if step == self.saved_step or isinstance(error, CheckpointError):
            return
        fate = checkpoint.how_far_back(step, self.saved_step, time.perf_counter() - self.saved_at)
        try:
            if not await go_back(trainer, self.changes):
                changed = f"step {step + 1} failed when weights may have changed"
                log.warning("%s, so step %s could not be saved: %s", changed, step, fate)
                return
            await self._save(trainer)
        except (Exception, SystemExit) as second:  # the run fails with the first error
            log.warning("step %s could not be saved: %s\n  %s", step, headline(second), fate)
            if not isinstance(second, RLHFError):
                log.info("step %s could not be saved", step, exc_info=True)
        else:
            log.info("step %s, the last whole one, is saved", step)

    async def _save_if_possible(self, trainer: Trainer, bests_before: list[Best]) -> None:
        """Save the last whole step, or go on without it where that cannot be written and an option says so."""
        try:
            await self._save(trainer)
        except CheckpointError as error:
            cause = error.__cause__
            failed_write = cause is not None and reason_of(cause) is not None
            if not failed_write or self.config.checkpoint.on_write_error != "skip":
                raise
            log.warning("%s The run goes on (--checkpoint.on_write_error skip)", error)
            self.saved_at = time.perf_counter()
            self.state.bests = bests_before
            self._keep_whole_step(trainer)

    async def _save(self, trainer: Trainer) -> None:
        """Write the checkpoint of the last whole step, which the roles still have."""
        step = self.whole.step
        for record in self.records.values():
            record.sync()

        async def fill(target: Path) -> None:
            for name, role in trainer.saved_roles.items():
                await role.save(target / name)
            fault_point("save", step)

        state = self.whole.to_json() | {
            "config": json.loads(json.dumps(self.resolved.tree)),
            "made_with": record_of(self.plugins, self.inputs),
            "records": {name: asdict(extent) for name, extent in self.extents.items()},
        }
        path = await checkpoint.save(self.folder.checkpoints, step, state, fill)
        self.saved_step, self.saved_at = step, time.perf_counter()
        bests = [best.step for best in self.whole.bests]
        checkpoint.retain(self.folder.checkpoints, self.config.checkpoint.keep, bests)
        self._tell("checkpoint_saved", step=step, path=path)

    def _result(self, status: Any, message: str = "") -> RunResult:
        saved, bests = complete(self.folder.checkpoints), self.state.bests
        best = checkpoint.step_folder(self.folder.checkpoints, bests[-1].step) if bests else None
        return RunResult(
            status=status,
            steps=self.state.step,
            seconds=time.perf_counter() - self.started,
            message=message,
            model=self.folder.model if self.folder.model.exists() else None,
            checkpoint=saved[-1] if saved else None,
            best=best if best in saved else None,
        )

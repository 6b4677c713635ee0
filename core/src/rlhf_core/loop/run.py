"""The entrance of ``rlhf train``."""

from __future__ import annotations

from ..config.resolved import Resolved
from ..observer import RunResult
from ..plugins import Plugins
from ..rollouts.cursor import Cursor
from .interrupts import Interrupts
from .loggers import Loggers
from .restore import is_saved, restore_roles, restore_shapers
from .resume import ResumePoint, find_resume_point
from .session import Session, open_session
from .state import initial_state
from .trainer import FinishedStep, Trainer

log = logging.getLogger(__name__)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def run(resolved: Resolved, plugins: Plugins) -> RunResult:
    """Run a whole training and return how it ended.

    Raises:
        RLHFError: the run could not start, or failed; its results so far are in the run folder, and ``--resume auto``
            goes on from the newest checkpoint.
    """
    folder = RunFolder(Path(resolved.run.output))
    resume = resolved.run.resume.checkpoint is not None
    with claim(folder, resume=resume), run_log(folder.log, plugins) as notes:
        for caution in resolved.cautions:
            log.warning("%s", caution)
        loggers = Loggers.of(resolved)
        point = find_resume_point(resolved, folder)
        if point is not None:
            strict = resolved.run.resume.strict
            now = record_of(plugins)
            report_changes(point.made_with, now, checkpoint=point.path, strict=strict)
        try:
            return asyncio.run(_Run(resolved, plugins, folder, point, notes, loggers).main())
        finally:
            # Outside of the event loop, so that Ctrl-C ends the wait.
            loggers.wait()


class _Run:
    """The driver around the trainer: records, observers, evaluation, checkpoints."""

    def __init__(
        self,
        resolved: Resolved,
        plugins: Plugins,
        folder: RunFolder,
        point: ResumePoint | None,
        notes: Notes,
        loggers: Loggers,
    ) -> None:
        self.resolved = resolved
        self.config = resolved.run
        self.plugins = plugins
        self.folder = folder
        self.point = point
        self.notes = notes
        self.loggers = loggers
        self.state = point.state if point else initial_state(self.config)
        self.started = time.perf_counter()

    async def main(self) -> RunResult:
        result: RunResult | None = None
        try:
            async with AsyncExitStack() as stack:
                result = await self._train(stack)
                return result
        except BaseException as error:
            message = str(error).splitlines()[0] if str(error) else type(error).__name__
            result = self._result("failed", message)
            raise
        finally:
            if result is not None:
                self.loggers.finish(result)
                self.plugins.observe("rlhf_run_end", result=result)

    async def _train(self, stack: AsyncExitStack) -> RunResult:
        interrupts = stack.enter_context(Interrupts())
        session = await open_session(self.resolved, self.plugins, stack)
        trainer = await self._restore(session, stack)
        self._write_header(session)
        info = RunInfo(
            output=self.folder.root,
            config=self.resolved.tree,
            total_steps=session.total_steps,
            start_step=self.state.step,
            notes=self.notes.taken(),
        )
        self.plugins.observe("rlhf_run_start", run=info)
        self.loggers.start(info)
        if self.state.step == 0 and self.config.eval.at_start:
            await self._evaluate(session)
        while self.state.step < session.total_steps:
            self._record_step(await trainer.step())
            last = self.state.step == session.total_steps
            is_best = False
            if _is_due(self.state.step, self.config.eval.every) or last:
                is_best = await self._evaluate(session)
            is_due = _is_due(self.state.step, self.config.checkpoint.every)
            if is_due or is_best or last or interrupts.requested:
                await self._save(session)
            if interrupts.requested and not last:
                return self._result(
                    "interrupted", f"stopped by {interrupts.requested}; go on with --resume auto"
                )
        await self._export(session)
        return self._result("finished")

    async def _restore(self, session: Session, stack: AsyncExitStack) -> Trainer:
        """Bring roles, records and cursor to the state of the resume point, and return the trainer that goes on."""
        step = self.state.step
        begun = self._take_up_records()
        self.metrics = stack.enter_context(
            closing(RecordFile(self.folder.metrics, begun.get(self.folder.metrics.name)))
        )
        self.samples = stack.enter_context(
            closing(RecordFile(self.folder.samples, begun.get(self.folder.samples.name)))
        )
        self.ledger = stack.enter_context(
            closing(Ledger(self.folder.ledger, begun.get(self.folder.ledger.name)))
        )
        if self.config.resume.checkpoint is not None or self.ledger.extent.num_bytes:
            self.ledger.resumed(step)
        if self.point is not None:
            await restore_roles(self.point, self.resolved, session.roles)
            await session.engine.update_weights(self.state.version, session.roles[POLICY].weights())
            session.source.lengths.load(self.state.lengths)
            restore_shapers(self.point, self.resolved, session.shapers)
        epochs = None if self.config.train.steps is not None else self.config.train.epochs
        cursor = Cursor(
            session.tasks, self.config.seed, epochs=epochs, taken=self.state.prompts_taken
        )
        self._restart_in_flight(session)
        return Trainer(session, self.state, cursor, self.ledger)

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

    def _restart_in_flight(self, session: Session) -> None:
        """Start the groups again that were in flight when the checkpoint was written."""
        in_flight = self.state.in_flight
        if self.point is None or not in_flight or self.state.step >= session.total_steps:
            return
        if self.folder.ledger.name not in self.point.records:
            # This ledger is new: the lines that planned them are in another run's, or in one that was set aside.
            count = self.config.rollout.n_samples_per_prompt
            groups = {(epoch, prompt): count for epoch, prompt in in_flight}
            self.ledger.planned(self.state.step, groups)
        tasks = [session.tasks.task(prompt, epoch) for epoch, prompt in in_flight]
        session.source.restore(tasks, self.state.step, self.state.version)

    def _write_header(self, session: Session) -> None:
        """Write the configuration and the plugins' versions, with which the run can be repeated, beside its results."""
        write_toml(self.resolved, self.folder.config)
        append_to_history(self.folder.plugins, record_of(self.plugins), step=self.state.step)

    def _record_step(self, result: FinishedStep) -> None:
        step = self.state.step
        for sample in result.samples:
            self.samples.write({"step": step, **sample})
        samples = [
            RolloutSample(**{name: sample[name] for name in RolloutSample.__dataclass_fields__})
            for sample in result.samples
        ]
        self.plugins.observe("rlhf_rollout_end", step=step, samples=samples, metrics=result.metrics)
        self.loggers.log_samples(step, samples)
        self.metrics.write(
            {
                "step": step,
                "time_s": round(self.state.seconds, 6),
                "metrics": result.metrics,
                "timing": result.timing,
            }
        )
        flat = result.metrics | {f"timing/{name}": value for name, value in result.timing.items()}
        self.plugins.observe("rlhf_step_end", step=step, metrics=flat)
        self.loggers.log_metrics(step, flat)

    async def _evaluate(self, session: Session) -> bool:
        """Evaluate, record the results, and return whether this is the best model so far."""
        if session.evaluator is None:
            return False
        values = await session.evaluator.run(self.state.step)
        record = {"step": self.state.step, "time_s": round(self.state.seconds, 6), "eval": values}
        self.metrics.write(record)
        self.plugins.observe("rlhf_eval_end", step=self.state.step, metrics=values)
        self.loggers.log_metrics(self.state.step, values)
        return self._is_best(values)

    def _is_best(self, values: dict[str, float]) -> bool:
        name = self.config.checkpoint.best_metric
        if name is None or self.state.step == 0:
            return False
        if name not in values:
            # Its set lost all samples to a reward's errors, say; that it has the metric was checked before.
            log.warning(
                "--checkpoint.best_metric %s was not evaluated at step %s, which is therefore no best one",
                name,
                self.state.step,
            )
            return False
        sign = 1 if self.config.checkpoint.best_mode == "max" else -1
        best = self.state.best_value
        if best is not None and sign * values[name] <= sign * best:
            return False
        self.state.best_value, self.state.best_step = values[name], self.state.step
        return True

    async def _save(self, session: Session) -> None:
        step = self.state.step
        self.ledger.sync()
        self.metrics.sync()
        self.samples.sync()

        async def fill(target: Path) -> None:
            for name, role in session.roles.items():
                if is_saved(name):
                    await role.save(target / name)
            fault_point("save", step)

        state = self.state.to_json() | {
            "config": json.loads(json.dumps(self.resolved.tree)),
            "made_with": record_of(self.plugins),
            "records": {
                self.folder.metrics.name: self.metrics.extent.to_json(),
                self.folder.samples.name: self.samples.extent.to_json(),
                self.folder.ledger.name: self.ledger.extent.to_json(),
            },
        }
        path = await checkpoint.save(self.folder.checkpoints, step, state, fill)
        checkpoint.retain(
            self.folder.checkpoints, self.config.checkpoint.keep, self.state.best_step
        )
        self.plugins.observe("rlhf_checkpoint_saved", step=step, path=path)

    async def _export(self, session: Session) -> None:
        """Write the trained model as a plain Transformers folder, which gets its name only when it is complete."""
        if not self.config.checkpoint.export:
            return
        exports = [(self.folder.model, False)]
        if self.config.actor.ema is not None:
            exports.append((self.folder.ema_model, True))
        for target, ema in exports:
            temporary = target.with_name(target.name + ".tmp")
            remove(temporary)
            await session.roles[POLICY].export(temporary, ema=ema)
            fault_point("export", self.state.step)
            sync_tree(temporary)
            remove(target)
            temporary.rename(target)

    def _result(self, status: Any, message: str = "") -> RunResult:
        return RunResult(
            status=status,
            steps=self.state.step,
            seconds=time.perf_counter() - self.started,
            message=message,
            model=self.folder.model if self.folder.model.exists() else None,
        )

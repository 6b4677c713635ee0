"""A run that is done step by step: its loop has a thread of its own and waits between steps for the caller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rlhf_config import ResolvedOptions
from rlhf_core import ConfigError
from rlhf_core.contracts import RunResult
from rlhf_trainer.loop.interrupts import Interrupts
from rlhf_trainer.loop.run_kind import Control
from rlhf_trainer.loop.state import RatedState, RunState

from .callbacks import DoneStep, StepRecorder
from .display import NotebookView
from .result import TrainingResult

POLL_S = 0.1
"""Seconds between two looks at signals while a step is waited for."""
ABORT_S = 60.0
"""Seconds that a run which is ended at once may take to let go of what it has."""


class Run:
    """One training, step by step; see ``rlhf.start``. Iterating does steps; leaving the context ends the run.

    After an end before the last step everything is saved, and ``resume="auto"`` goes on.
    """

    def __init__(
        self,
        work: Callable[[Control], RunResult],
        resolved: ResolvedOptions[Any],
        optimizers: Mapping[str, str],
        recorder: StepRecorder,
        view: NotebookView | None,
    ) -> None:
        self._resolved = resolved
        self._optimizers = optimizers
        self._recorder = recorder
        self._view = view
        self._gate = _Gate()
        self._ended: RunResult | None = None
        self._error: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._do, args=(work,), name="rlhf run", daemon=True)

    @property
    def output(self) -> Path:
        """The run folder."""
        return Path(self._resolved.run.output)

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run; None until the first one is done or asked for."""
        return self._recorder.total_steps

    @property
    def result(self) -> TrainingResult:
        """The end of the run.

        Raises:
            RuntimeError: it has not ended.
        """
        if self._ended is None:
            raise RuntimeError("the run has not ended; leave its context, or iterate to its end")
        return TrainingResult.of(self._ended, self.output)

    def stop(self) -> None:
        """Have the run end after the step that is under way. Works from any thread."""
        self._gate.stop("run.stop()")

    def set_learning_rate(self, lr: float, role: str | None = None) -> None:
        """Give a role's optimizer another peak learning rate, from the next step on. The schedule still scales it.

        The other parameter groups of the optimizer change by the same factor. Checkpoints hold the factor, and
        metrics have it as ``policy/lr_factor``. Works from any thread.

        Args:
            role: the model whose rate it is; None: the one that the command trains, of ``rlhf train`` the policy.

        Raises:
            ConfigError: the rate is no number of at least 0, the role has no optimizer, or its optimizer has no
                option ``lr`` above 0: then ``scale_learning_rate`` still works.
        """
        known = self._role(role)
        _check_rate(lr, f"learning rate of the {known}")
        optimizer = self._resolved.one(self._optimizers[known])
        peak = getattr(optimizer.options, "lr", None)
        if not isinstance(peak, float | int) or peak <= 0:
            raise ConfigError(
                f"{optimizer.registered.qualified} has no option lr above 0 to change; use scale_learning_rate",
                code="run/learning-rate",
            )
        self.scale_learning_rate(lr / peak, known)

    def scale_learning_rate(self, factor: float, role: str | None = None) -> None:
        """Multiply the learning rates that the run was configured with, from the next step on; 1 puts them back.

        Raises:
            ConfigError: the factor is no number of at least 0, or the role has no optimizer.
        """
        known = self._role(role)
        _check_rate(factor, f"factor of the learning rate of the {known}")
        self._gate.scale(known, float(factor))

    def _role(self, role: str | None) -> str:
        """Return the role that is meant, one with an optimizer."""
        if not self._optimizers:
            raise ConfigError(
                f"rlhf {self._resolved.command} has no learning rate that can be changed while it runs; expected a "
                "command whose TrainingCommand names its optimizers. Set the rate before the run.",
                code="run/learning-rate",
            )
        named = next(iter(self._optimizers)) if role is None else role
        if named not in self._optimizers:
            raise ConfigError(
                f"role {named!r}: expected {' or '.join(self._optimizers)}",
                code="run/learning-rate",
            )
        return named

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> DoneStep:
        """Do the next step, with its evaluation and checkpoint if they are due, and return it.

        A first Ctrl-C (or interrupt of a notebook's kernel) lets the step end, saves, and ends the run; a second one
        ends it at once.

        Raises:
            RLHFError: the run failed; ``resume="auto"`` continues from the newest checkpoint.
        """
        with Interrupts() as interrupts:
            step = self._next(interrupts)
        if step is None:
            raise StopIteration
        return step

    def finish(self) -> None:
        """Do all steps that are left. A first Ctrl-C counts whenever it comes, also between two steps.

        Raises:
            RLHFError: as a step does.
        """
        with Interrupts() as interrupts:
            while self._next(interrupts) is not None:
                pass

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(reason="run.stop()" if error is None else type(error).__name__)

    def close(self, reason: str = "run.close()") -> None:
        """End the run if it has not ended: what is not saved is saved. Closing again does nothing."""
        if self._closed or self._thread.ident is None:
            self._closed = True
            return
        self._closed = True
        with Interrupts() as interrupts:
            self._gate.stop(reason)
            self._pass(interrupts)
        self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._view is not None and self._ended is not None:
            self._view.end(self.result)

    def _next(self, interrupts: Interrupts) -> DoneStep | None:
        """Do a step; None: the run has ended."""
        if self._closed:
            return None
        if self._thread.ident is None:
            self._thread.start()
        self._pass(interrupts)
        if self._error is not None:
            self._raise()
        step = self._recorder.take()
        if step is not None and self._view is not None:
            self._view.show(step, self.total_steps)
        return step

    def _do(self, work: Callable[[Control], RunResult]) -> None:
        try:
            self._ended = work(self._gate)
        except BaseException as error:  # it is raised again in the caller's thread
            self._error = error
        finally:
            self._gate.finish()

    def _pass(self, interrupts: Interrupts) -> None:
        """Let the loop through the gate, and wait until it stands there again, or has ended. Signals are heard
        meanwhile, on the main thread."""
        try:
            if interrupts.requested is not None:  # it came since the loop stood at the gate
                self._gate.stop(interrupts.requested)
            self._gate.open()
            while not self._gate.arrived(POLL_S):
                if interrupts.requested is not None:
                    self._gate.stop(interrupts.requested)
        except KeyboardInterrupt:
            self._gate.abort()
            self._thread.join(ABORT_S)
            self._closed = True
            raise
        # The signal may have come while the loop arrived.
        if interrupts.requested is not None:
            self._gate.stop(interrupts.requested)

    def _raise(self) -> None:
        assert self._error is not None
        error, self._error, self._closed = self._error, None, True
        self._thread.join()
        raise error


def _check_rate(number: Any, what: str) -> None:
    """Refuse what cannot be a learning rate or a factor of one."""
    if not (isinstance(number, float | int) and 0 <= number < float("inf")):
        raise ConfigError(
            f"{what}: expected a finite number of at least 0, got {number!r}",
            code="run/learning-rate",
        )


class _Gate:
    """``Control`` of a run by another thread: one pass through the gate for each step."""

    def __init__(self) -> None:
        self._lr_factors: dict[str, float] = {}
        """Role -> factor that the loop takes over before its next step."""
        self._stop_reason: str | None = None
        self._task: asyncio.Task[Any] | None = None
        self._opened: asyncio.Event | None = None
        self._waits = threading.Event()
        """Set while the loop stands before a step, and once it has ended."""
        self._finished = False
        self._lock = threading.Lock()
        self._may_pass = False

    @property
    def stop_reason(self) -> str | None:
        return self._stop_reason

    def began(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self._opened = asyncio.Event()

    async def before_step(self, state: RunState) -> None:
        assert self._opened is not None
        while not self._passed():
            await self._opened.wait()
            self._opened.clear()
        # Callers' threads may give a factor at any time; none may come between taking and forgetting.
        with self._lock:
            factors, self._lr_factors = self._lr_factors, {}
        if factors:
            assert isinstance(state, RatedState), "TrainingCommand.optimizers promises it"
            state.lr_factors |= factors

    def _passed(self) -> bool:
        """Take the pass if there is one; if not, say that the loop waits."""
        with self._lock:
            may_pass, self._may_pass = self._may_pass, False
            if not may_pass:
                self._waits.set()
            return may_pass

    def open(self) -> None:
        """Let the loop pass once."""
        with self._lock:
            if self._finished:
                return
            self._may_pass = True
            self._waits.clear()
        self._in_loop(self._wake)

    def _wake(self) -> None:
        if self._opened is not None:
            self._opened.set()

    def scale(self, role: str, factor: float) -> None:
        """Have the loop take over a role's factor before its next step."""
        with self._lock:
            self._lr_factors[role] = factor

    def stop(self, reason: str) -> None:
        """Have the run end before its next step; the first reason stays."""
        self._stop_reason = self._stop_reason or reason

    def abort(self) -> None:
        """Cancel the run's task."""
        self._in_loop(lambda: self._task is not None and self._task.cancel())

    def arrived(self, limit_s: float) -> bool:
        """Wait until the loop stands before a step or has ended; return False if that takes longer."""
        return self._waits.wait(limit_s)

    def finish(self) -> None:
        """Note that the loop has ended."""
        with self._lock:
            self._finished = True
            self._waits.set()

    def _in_loop(self, call: Callable[[], object]) -> None:
        task = self._task
        if task is None:
            return
        try:
            task.get_loop().call_soon_threadsafe(call)
        except RuntimeError:
            # The loop has been closed meanwhile: the run has ended, which finish() says.
            return

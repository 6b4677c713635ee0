"""The contracts of the loop around every kind of run: with one kind of run, such as ``rlhf train``, and with whoever
steers a run from the same process, such as a notebook."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol

from rlhf_config.resolved import ResolvedOptions, RunT
from rlhf_core.long_work import log_if_long
from rlhf_core.plugins import Plugins
from rlhf_core.storage.faults import fault_point
from rlhf_core.storage.run_folder import RunFolder
from rlhf_core.storage.writing import made_whole

from ..durable.records import Extent, RunningDigest
from .resume import ResumePoint, ResumeRules, StateT
from .state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedStep:
    """One step's entries for the records."""

    metrics: Mapping[str, float]
    timing: Mapping[str, float]
    samples: Sequence[Mapping[str, Any]] | None = None
    """A few of the step's rollouts as text; None: this kind of run has no rollouts."""


class OwnRecord(Protocol):
    """A record in the run folder that a trainer writes itself, beside the metrics and the samples."""

    @property
    def extent(self) -> Extent:
        """The whole file as it is now."""

    def sync(self) -> None:
        """Make everything written so far durable."""


class Exportable(Protocol):
    """A ``RoleHandle``, or a wrapper that also writes extra files."""

    async def export(self, folder: Path, *, ema: bool = False) -> None: ...


class SavedRole(Exportable, Protocol):
    """A ``RoleHandle``, or its wrapper, as checkpoints see it.

    One without ``changes`` is saved between steps alone, and not when a step has failed.
    """

    async def save(self, folder: Path) -> None: ...

    async def load(self, folder: Path) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A model that is written when the run is finished."""

    role: Exportable
    folder: Path
    ema: bool = False
    """True: the moving average of the weights."""


class Trainer(Protocol):
    """The steps of one run. All state between steps is in ``state``, in the roles and in the records."""

    @property
    def state(self) -> RunState:
        """The state between steps. A step replaces what it holds, such as lists, and does not change it in place."""

    @property
    def total_steps(self) -> int: ...

    @property
    def saved_roles(self) -> Mapping[str, SavedRole]:
        """The roles whose state each checkpoint holds."""

    @property
    def records(self) -> Mapping[str, OwnRecord]:
        """The records that the trainer writes itself, by file name; each checkpoint stores their extents."""

    @property
    def exports(self) -> Sequence[Export]:
        """The models that a finished run writes."""

    async def begin(
        self,
        point: ResumePoint[Any] | None,
        begun: Mapping[str, RunningDigest],
        stack: AsyncExitStack,
    ) -> None:
        """Open the trainer's records and bring roles and components to the state of the resume point.

        Args:
            point: None: the run starts at its beginning.
            begun: digests of the records that go on, by file name.

        Raises:
            ResumeError: a role or component cannot take its state back.
        """

    async def step(self) -> FinishedStep:
        """Do the next step, and count it in ``state``."""

    @property
    def headline(self) -> str | None:
        """The metric of ``evaluate`` that ``--checkpoint.best_metric auto`` means; None: nothing is evaluated."""

    async def evaluate(self) -> Mapping[str, float] | None:
        """Evaluate the present weights; None: the run has nothing to evaluate on."""


def headline_of(trainer: Trainer) -> str | None:
    """Return the headline of a trainer; None for one that was written before trainers had any."""
    return getattr(trainer, "headline", None)


async def go_back(trainer: Trainer, changes: Mapping[str, int | None]) -> bool:
    """Return whether the roles are where they were, after undoing what came later if they can.

    Args:
        changes: ``RoleHandle.changes`` of each saved role then, None for one that does not count them. While these are
            the same, so are the roles.
    """
    for name, role in trainer.saved_roles.items():
        before, undo = changes[name], getattr(role, "undo", None)
        is_there = before == getattr(role, "changes", None)
        if before is None or not (is_there or (undo is not None and await undo(before))):
            return False
    return True


async def export_models(exports: Sequence[Export], step: int) -> None:
    """Write the models of a run's last step.

    Raises:
        StorageError: a model could not be written; nothing of it is left, and an earlier one under its name is.
    """
    for export in exports:
        advice = "The last checkpoint has the model: --resume auto exports it"
        with made_whole(export.folder, advice=advice) as temporary:
            with log_if_long(f"writing the model to {export.folder}"):
                await export.role.export(temporary, ema=export.ema)
            fault_point("export", step)


class Control(Protocol):
    """Steers one run. The loop calls it from its own thread; it may be told what to do from others.

    The loop stops at ``before_step`` as often as there are steps, with everything recorded that came before. There a
    run may be held, its state may be changed, and it may be told to end.
    """

    @property
    def stop_reason(self) -> str | None:
        """Reason to end the run at the next step, in words that follow "stopped by"; None: go on."""

    def began(self, task: asyncio.Task[Any]) -> None:
        """Take the run's task, once, before anything is built. Cancelling it ends the run at once, as failed."""

    async def before_step(self, state: RunState) -> None:
        """Return when the next step may be done. ``state`` is what a checkpoint written now would hold."""


OpenTrainer = Callable[
    [ResolvedOptions[RunT], Plugins, RunFolder, StateT, AsyncExitStack], Awaitable[Trainer]
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKind(Generic[RunT, StateT]):
    """Everything in which one kind of run differs from another."""

    initial_state: Callable[[RunT], StateT]
    """Return the state of a run that has done nothing yet."""
    resuming: ResumeRules[StateT]
    open: OpenTrainer[RunT, StateT]
    """Load the data, build every component and role, and put their closing on the stack; nothing is restored yet."""

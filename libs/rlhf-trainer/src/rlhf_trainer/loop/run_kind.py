"""The contract between the loop around every kind of run and one kind of run, such as ``rlhf train``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol

from rlhf_config.resolved import ResolvedOptions, RunT
from rlhf_core.plugins import Plugins
from rlhf_core.storage.run_folder import RunFolder

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


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeStep:
    """Contents of the checkpoint of a finished step beside the roles."""

    state: RunState
    """The state between steps."""
    extents: Mapping[str, Extent]
    """The length of each record, by file name."""
    changes: Mapping[str, int | None]
    """``RoleHandle.changes`` of each saved role, None for one that does not count them: while these are the same, the
    roles are those of this step too."""


def headline_of(trainer: Trainer) -> str | None:
    """Return the headline of a trainer; None for one that was written before trainers had any."""
    return getattr(trainer, "headline", None)


async def go_back(trainer: Trainer, changes: Mapping[str, int | None]) -> bool:
    """Return whether the roles are where ``WholeStep.changes`` was read, after undoing what came later if they can."""
    for name, role in trainer.saved_roles.items():
        before, undo = changes[name], getattr(role, "undo", None)
        is_there = before == getattr(role, "changes", None)
        if before is None or not (is_there or (undo is not None and await undo(before))):
            return False
    return True


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

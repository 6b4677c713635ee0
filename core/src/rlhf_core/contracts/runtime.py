"""Runtimes, which place a run's roles and engines and give the loop handles to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..batch.trajectory_columns import TrajectoryColumns
from ..component import ComponentRef
from ..lazy import NDArray, np
from ..media.vision import ImageReaderSpec
from .backend import Leaving, RoleSpec, Statistic, StepOutcome, StepPlan, TopTokens, TrainBatch
from .engine import Engine, EngineSpec, WeightSource
from .executor import ControlWordUse, GroupPlayer
from .layout import ProcessLayout
from .learner import Learner

if TYPE_CHECKING:
    from ..plugins import Plugins


class RoleHandle(Protocol):
    """All ranks of one role, seen from the driver. Has the calls of ``TrainBackend``, each for the whole batch.

    A handle may have ``changes``, a number that changes before ``train_step`` or ``load`` changes weights or training
    state. If a step fails and the number is still that of the step before, the loop saves the step before. Otherwise
    it calls ``async undo(changes) -> bool``, if the handle has it, to go back to the state of that number.
    """

    async def logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """See ``TrainBackend.logprobs``; (B, A)."""

    async def base_logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """See ``SharesBase.base_logprobs``; (B, A)."""

    async def values(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """See ``TrainBackend.values``; (B, A)."""

    async def statistics(
        self, batch: TrajectoryColumns, names: Sequence[Statistic]
    ) -> dict[Statistic, NDArray[np.float32]]:
        """See ``TrainBackend.statistics``; each (B, A)."""

    async def top_tokens(self, batch: TrajectoryColumns, k: int) -> TopTokens:
        """See ``TrainBackend.top_tokens``."""

    async def train_step(self, batch: TrainBatch, plan: StepPlan) -> StepOutcome:
        """See ``TrainBackend.train_step``; one update over all ranks."""

    async def checksum(self) -> str:
        """See ``TrainBackend.checksum``; equal weights give equal ones."""

    async def save(self, folder: Path) -> None:
        """Write everything that ``load`` needs to continue into a new folder."""

    async def load(self, folder: Path) -> None:
        """Go on from a folder that ``save`` wrote."""

    async def export(self, folder: Path, *, ema: bool = False) -> None:
        """Write a plain Transformers folder; with ``ema`` of the averaged weights."""

    async def offload(self, *, weights: bool = True, state: bool = True) -> None:
        """See ``TrainBackend.offload``."""

    async def reload(self) -> None:
        """See ``TrainBackend.reload``."""

    def weights(self) -> WeightSource:
        """Return the source from which an engine takes the present weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSpec:
    """A reward as it crosses process boundaries."""

    component: ComponentRef
    """The reward and its options."""
    section: str
    """Path of the section with its options, such as ``reward.exact``; the last word is the reward's name."""
    shared: Mapping[str, Any]
    """The options that every reward has: weight, deadline, handling of errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """An environment as it crosses process boundaries."""

    component: ComponentRef
    """The environment and its options."""
    section: str
    """Path of the section with its options, such as ``env.maze``; the last word is its name in the run."""
    shared: Mapping[str, Any] = field(default_factory=dict)
    """The options that every environment has."""

    @property
    def name(self) -> str:
        """The environment's name in the run."""
        return self.section.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSpec:
    """Names and plain values from which a process builds all that it needs to run episodes."""

    executor: ComponentRef
    """The executor and its options."""
    tokenizer_path: str
    """Folder or hub name of the tokenizer."""
    environments: tuple[EnvironmentSpec, ...] = ()
    """Empty: no episode has an environment."""
    trust_remote_code: bool = False
    """True: Python code that comes with the tokenizer may run."""
    control_words: ControlWordUse = "text"
    """Use of control words in observations and messages."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the chat template."""
    rewards: tuple[RewardSpec, ...] = ()
    """Empty when the environment alone gives rewards."""
    images: ImageReaderSpec | None = None
    """Reading of the images of observations; None: the policy reads text alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSpec:
    """Everything that a runtime has to build."""

    roles: Mapping[str, RoleSpec]
    """Roles by name. An engine serves the weights of ``policy``."""
    backend: ComponentRef
    """The backend of all roles, and its options."""
    engine: ComponentRef | None = None
    """None: nothing generates in this run."""
    engine_spec: EngineSpec | None = None
    """Everything that an engine is told; None without an engine."""
    overlaps: bool = False
    """True: the engine generates while roles compute, so a role's calls must leave the event loop free."""
    moving_roles: tuple[str, ...] = ()
    """Roles that share the engine's accelerator, and leave it while the engine generates. The engine sleeps while they
    compute. Empty: nothing sleeps."""
    leaving: Leaving = "all"
    """Parts that these roles move out while the engine generates: no more than it needs room for."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The whole configuration as nested plain values, as ``config.toml`` has them, for a learner in a process of its
    own; empty: the loop learns in the driver."""
    rollouts: RolloutSpec | None = None
    """Executor, environment and rewards, for a runtime that runs episodes in processes of their own; None: episodes run
    in the driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Everything that a runtime has built."""

    roles: Mapping[str, RoleHandle]
    """Roles by name, as many as the spec has."""
    engine: Engine | None = None
    """One engine, or a router in front of many; None where the spec has none."""
    learner: Learner | None = None
    """Learner in another process, with bitwise equal results; None: the loop learns in the driver."""
    groups: GroupPlayer | None = None
    """Player of whole groups in other processes, rewards included; None: the loop plays them, with the run's
    executor and rewards."""


@runtime_checkable
class PlansPlacement(Protocol):
    """Options of a runtime that can predict its placement before anything is started."""

    @property
    def for_engines(self) -> frozenset[str]:
        """Options that change nothing in a run without an engine, by name."""

    def layout(
        self, roles: Sequence[str], *, has_gpus: bool, has_engine: bool = True
    ) -> ProcessLayout:
        """Return the processes and the CPUs and GPUs that they share, for predictions of memory and time.

        Args:
            has_gpus: True: each process has a GPU where the options do not say otherwise.
            has_engine: False: nothing generates in this run.

        Raises:
            ConfigError: the options contradict each other, or name a role that the run does not have.
        """

    def placement(self, roles: Sequence[str], *, has_engine: bool = True) -> Sequence[str]:
        """Return the layout in lines, for ``--dry-run``.

        Args:
            has_engine: False: nothing generates in this run.

        Raises:
            ConfigError: the options contradict each other, or name a role that the run does not have.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepAdvice:
    """Advice of a memory planner about ``runtime.sleep``."""

    sleeps: bool
    """True: the engine should sleep while roles compute."""
    leaving: Leaving = "all"
    """Parts that roles should move out meanwhile: the least with which the run fits."""
    reason: str
    """One line for the log, with the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """Values that a memory planner chose for options that the user did not set."""

    values: Mapping[str, Any]
    """Options by dotted path."""
    reason: str
    """One line for the user: what was chosen, and why."""


@runtime_checkable
class MemoryPlanner(Protocol):
    """Prediction of whether a run fits, by a command that provides ``plans_memory``."""

    def sleep_advice(self, config: Mapping[str, Any], plugins: Plugins) -> SleepAdvice | None:
        """Return whether the run needs a sleeping engine on the accelerators of this machine; None: it has none.

        Args:
            config: ``RuntimeSpec.config``.

        Raises:
            RLHFError: the run cannot be predicted.
        """


@runtime_checkable
class MemoryFitter(Protocol):
    """Chooses the options about memory that the user did not set; from a command that provides ``plans_memory``."""

    def memory_options(
        self, command: str, config: Mapping[str, Any], given: Collection[str], plugins: Plugins
    ) -> MemoryOptions | None:
        """Return the options about memory with which a step is fastest on the accelerators of this machine; None: there
        are none, or the run does not fit in any way.

        Args:
            command: name of the command that trains.
            config: as ``RuntimeSpec.config``.
            given: paths of the options that somebody has set, which stay as they are.

        Raises:
            RLHFError: the run cannot be predicted.
        """


class Runtime(Protocol):
    """Builds and places all processes of a run. A factory is called as ``factory(config)``."""

    async def start(self, spec: RuntimeSpec, plugins: Plugins) -> Placement:
        """Build all roles, and the engine if there is one, which then serves version 0 of the policy's weights."""

    async def close(self) -> None:
        """Take everything down, also after a failed ``start``. To close again does nothing."""

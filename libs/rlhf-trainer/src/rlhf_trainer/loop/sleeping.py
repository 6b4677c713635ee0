"""Engine and roles in turn on the same accelerators (``runtime.sleep``). Other runs have nothing of this.

While roles compute the engine sleeps; while it generates they are in host memory, as far as it needs the room. Between
the two the new weights are delivered to the sleeping engine: the roles keep their weights alone, if state leaves at
all, and the engine takes back the memory of its own, and the rest when it wakes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rlhf_config.resolved import Resolved
from rlhf_core.capabilities import PLANS_MEMORY
from rlhf_core.contracts import RoleHandle, RuntimeSpec
from rlhf_core.contracts.backend import Leaving
from rlhf_core.contracts.engine import Engine, WeightSync
from rlhf_core.contracts.layout import ENGINE
from rlhf_core.contracts.runtime import MemoryPlanner, PlansPlacement, SleepAdvice
from rlhf_core.errors import ConfigError, RLHFError
from rlhf_core.plugins import Plugins
from rlhf_core.storage.faults import fault_point

from ..learning.roles import POLICY

log = logging.getLogger(__name__)

PHASES = ("sleep_s", "reload_s", "offload_s", "wake_s")
"""Timings of a step whose engine sleeps, in their order: since the end of the step before."""
TOTAL = "moves_s"
"""Timing of all these phases together."""


class Sleeping:
    """Has the engine awake or the roles loaded, as the caller says, and hands it the policy's weights.

    Args:
        moving: names of the roles that make room while the engine generates.
        leaving: what of them leaves. What an allocator keeps of freed memory goes in any case.
        adapted: True: the policy is an adapter beside a base, whose weights other roles may compute with too.
    """

    def __init__(
        self,
        engine: Engine,
        roles: Mapping[str, RoleHandle],
        moving: Sequence[str],
        *,
        leaving: Leaving = "all",
        adapted: bool = False,
    ) -> None:
        self._engine = engine
        self._leaving = leaving
        self._roles = roles
        self._moving = tuple(moving)
        self._adapted = adapted
        self._awake = True
        self._delivered: int | None = None
        """Version that the engine got since it fell asleep; it must not wake with another, nor with none."""
        self._loaded: bool | None = None
        """None: a part is in host memory. At the start the runtime may have moved out what the engine's start needs no
        room for; after an update the weights alone are here."""
        self._seconds: dict[str, float] = {}

    async def for_engine(self, version: int) -> None:
        """Return when the engine may generate, with the policy's weights, which are ``version``."""
        if not self._awake and self._delivered != version:
            await self.deliver(version)
        if self._loaded is not False:
            with self._timed("offload_s"):
                await self._make_room(weights=True)
            self._loaded = False
        if not self._awake:
            with self._timed("wake_s"):
                await self._engine.wake()
            self._awake = True

    async def for_roles(self, step: int) -> None:
        """Return when the roles may compute. Nothing may be in flight in the engine."""
        if self._awake:
            with self._timed("sleep_s"):
                await self._engine.sleep()
            self._awake, self._delivered = False, None
            fault_point("asleep", step)
        if self._loaded is not True:
            with self._timed("reload_s"):
                for name in self._moving:
                    await self._roles[name].reload()
            self._loaded = True

    async def deliver(self, version: int) -> tuple[WeightSync | None, float]:
        """Hand the policy's weights, which are ``version``, to the engine, asleep or not. The roles are loaded.

        A sleeping engine needs room for its own: all else of the roles leaves before, with the memory that an allocator
        would keep for the next batch. A role that has just trained leaves no room.

        Returns:
            What the engine says of it, and the seconds that it took without the making of room.
        """
        if not (self._awake or self._engine.shares_weights or self._loaded is None):
            with self._timed("offload_s"):
                await self._make_room(weights=False)
            self._loaded = None
        self._delivered = None  # until all of it has come
        started = time.perf_counter()
        synced = await self._engine.update_weights(version, self._roles[POLICY].weights())
        self._delivered = version
        return synced, time.perf_counter() - started

    def saved(self, roles: Mapping[str, RoleHandle], step: int) -> Mapping[str, LoadedRole]:
        """Return the roles as those who write or read their files see them: loaded before each call."""
        return {name: LoadedRole(self, role, step) for name, role in roles.items()}

    def take_seconds(self) -> dict[str, float]:
        """Return the seconds of each phase since the last call."""
        taken, self._seconds = self._seconds, {}
        return {phase: taken.get(phase, 0.0) for phase in PHASES} | {TOTAL: sum(taken.values())}

    async def _make_room(self, *, weights: bool) -> None:
        """Have the roles move out what leaves in this run, weights only if the engine is not to be given them yet."""
        state = self._leaving != "nothing"
        for name in self._moving:
            whole = weights and self._leaves_whole(name)
            await self._roles[name].offload(weights=whole, state=state)

    def _leaves_whole(self, name: str) -> bool:
        """Return True if the role's weights move too: the engine does not compute with them."""
        is_shared = self._engine.shares_weights and (name == POLICY or self._adapted)
        return self._leaving == "all" and not is_shared

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class LoadedRole:
    """The files of a role, which is loaded before they are read or written."""

    sleeping: Sleeping
    role: RoleHandle
    step: int

    @property
    def changes(self) -> int | None:
        """See ``RoleHandle.changes``."""
        return getattr(self.role, "changes", None)

    async def undo(self, changes: int) -> bool:
        """See ``RoleHandle``."""
        if undo := getattr(self.role, "undo", None):
            await self.sleeping.for_roles(self.step)
        return undo is not None and bool(await undo(changes))

    async def save(self, folder: Path) -> None:
        """Write the role's state."""
        await self.sleeping.for_roles(self.step)
        await self.role.save(folder)

    async def load(self, folder: Path) -> None:
        """Restore the role's state."""
        await self.sleeping.for_roles(self.step)
        await self.role.load(folder)

    async def export(self, folder: Path, *, ema: bool = False) -> None:
        """Write a plain Transformers folder."""
        await self.sleeping.for_roles(self.step)
        await self.role.export(folder, ema=ema)


def roles_beside_the_engine(resolved: Resolved, roles: Sequence[str]) -> tuple[str, ...]:
    """Return those of ``roles`` that share accelerators with an engine, as far as the options of the runtime say it.

    Raises:
        ConfigError: the options contradict each other.
    """
    options = resolved.one("runtime.name").options
    if not isinstance(options, PlansPlacement):
        return tuple(roles)
    beside = options.layout(roles, has_gpus=True).of(ENGINE).names
    return tuple(name for name in roles if name in beside)


LEAVING: Mapping[str, Leaving] = {"engine": "nothing", "state": "state", "always": "all"}
"""Values of ``runtime.sleep`` with which the engine sleeps, and what roles move out while it generates."""


def asleep_while_it_learns(resolved: Resolved, spec: RuntimeSpec, leaving: Leaving) -> RuntimeSpec:
    """Return the specification of the run in which the engine sleeps while roles compute.

    Args:
        leaving: what the roles move out while the engine generates.

    Raises:
        ConfigError: the engine shares its accelerators with no role, so that nobody would get what it gives back.
    """
    moving = roles_beside_the_engine(resolved, list(spec.roles))
    if not moving:
        raise ConfigError(
            f"runtime.sleep is {resolved.run.runtime.sleep}, but no role shares accelerators with an engine: its "
            "memory would be given back to nobody. Leave --runtime.sleep out, or let them share: leave "
            "--runtime.ray.colocate out.",
            code="config/sleep-without-sharing",
        )
    assert spec.engine_spec is not None
    roles = {
        name: replace(role, leaving=leaving) if name in moving else role
        for name, role in spec.roles.items()
    }
    return replace(
        spec,
        roles=roles,
        moving_roles=moving,
        leaving=leaving,
        engine_spec=replace(spec.engine_spec, sleeps=True),
    )


def with_sleep(resolved: Resolved, spec: RuntimeSpec, plugins: Plugins) -> RuntimeSpec:
    """Return the specification with the decision of ``runtime.sleep``; ``auto`` asks the installed memory planner.

    Raises:
        ConfigError: see ``asleep_while_it_learns``.
    """
    choice = resolved.run.runtime.sleep
    if choice in LEAVING:
        return asleep_while_it_learns(resolved, spec, LEAVING[choice])
    never = choice == "never" or resolved.run.rollout.max_staleness
    if never or not roles_beside_the_engine(resolved, list(spec.roles)):
        return spec
    advice = _advice(spec, plugins)
    if advice is None:
        return spec
    log.info("runtime.sleep auto: %s", advice.reason)
    return asleep_while_it_learns(resolved, spec, advice.leaving) if advice.sleeps else spec


def _advice(spec: RuntimeSpec, plugins: Plugins) -> SleepAdvice | None:
    """Return the advice of the first installed planner that has one."""
    for entry in plugins.registries["rlhf_commands"]:
        command = entry.load() if PLANS_MEMORY in entry.component.provides else None
        if not isinstance(command, MemoryPlanner):
            continue
        try:
            advice = command.sleep_advice(spec.config, plugins)
        except RLHFError as error:
            log.warning(
                "runtime.sleep auto: the memory of this run cannot be predicted, so nothing sleeps: %s",
                error,
            )
            return None
        if advice is not None:
            return advice
    return None

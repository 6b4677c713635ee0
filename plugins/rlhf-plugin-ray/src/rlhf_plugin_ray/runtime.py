"""The Ray runtime: places and starts the processes of all roles, engines and rollout workers, and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from rlhf_core import ConfigError
from rlhf_core.capabilities import ONE_PROCESS, SEVERAL_RANKS
from rlhf_core.contracts import (
    ENGINE,
    ROLLOUT,
    Colocation,
    Placement,
    ProcessLayout,
    RoleSpec,
    RolloutSpec,
    RuntimeSpec,
)
from rlhf_core.objective import rows_per_unit
from rlhf_core.plugins import Plugins

from .cluster import preflight
from .cluster.cluster import RayCluster
from .config import RayRuntimeConfig
from .engines.delivery import WeightDelivery
from .engines.engine_actor import EngineActor
from .engines.router import EngineRouter
from .layout import plan_layout, require_known_names, require_room
from .processes.process import ActorProcess, Driver, ProcessInfo, describe_driver, killed_on_error
from .processes.supervisor import ProcessLost, Supervisor, all_of
from .ranks.learner_actor import LearnerActor
from .ranks.rank_actor import RankActor
from .ranks.remote_learner import RemoteLearner
from .ranks.role import RayRole, SharedBatches
from .rollouts.reward_actor import SET_BY_RAY, RewardActor
from .rollouts.rollout_actor import RolloutActor
from .rollouts.rollout_pool import RolloutPool

log = logging.getLogger(__name__)

CALLED = {ENGINE: "engine", ROLLOUT: "rollout worker"}
"""Names in messages of processes that are no ranks of a role."""
MAX_CALLS = 100_000
"""Number of calls that one process may have pending. With Ray's default of 1 000, a paused engine's requests could use
up the number, and ``resume`` would wait behind them."""
LEARNER = "the learner"
"""Name of the learner's process in messages."""
REWARDS = "the rewards"
"""Name in messages of the process that computes the rewards of all rollout workers."""


class RayRuntime:
    """Implements ``rlhf_core.contracts.Runtime``. ``layout`` decides which processes share machines and GPUs.

    A run without an engine has the processes of its roles alone.
    """

    def __init__(self, config: RayRuntimeConfig) -> None:
        self._config = config
        self._cluster = RayCluster(config)
        self._supervisor = Supervisor()
        self._placement_groups: dict[Colocation, PlacementGroup] = {}
        self._actors: list[Any] = []
        self._router: EngineRouter | None = None
        self._pool: RolloutPool | None = None
        self._layout: ProcessLayout
        self._driver: Driver

    @property
    def plays_groups(self) -> bool:
        """True where rollout workers play and score the groups."""
        return self._config.rollout_workers > 0

    async def start(self, spec: RuntimeSpec, plugins: Plugins) -> Placement:
        """Start and build all processes, and return the loop's handles of them.

        Engines, if the run has any, then serve version 0 of the policy's weights.

        Raises:
            ConfigError: the cluster cannot be reached or is too small, or the options contradict each other.
            FingerprintMismatch: a machine has other plugins or versions.
            ProcessLost: a process died, or missed a deadline.
        """
        names = list(spec.roles)
        # Checks that need no cluster come before a cluster is started.
        _require_ranks_fit(self._config, spec, plugins)
        require_known_names(self._config, names, has_engine=spec.engine is not None)
        self._cluster.open()
        self._driver = describe_driver(plugins)
        self._layout = await self._reserve(names, spec)
        # Workers start while models load, so that a reward that cannot be built ends the start early.
        roles, _ = await all_of([self._start_roles(spec, plugins), self._start_pool(spec, plugins)])
        if spec.engine is None:
            return Placement(roles=roles)
        router = self._make_router(spec, roles["policy"])
        self._router = router
        if self._pool is not None:
            self._pool.connect(router)
        # Engines are given weights as they start, and need the room of everything else.
        state = spec.leaving != "nothing"
        await all_of(roles[name].offload(weights=False, state=state) for name in spec.moving_roles)
        await router.start_all(self._layout.counts[ENGINE])
        return Placement(
            roles=roles,
            engine=router,
            learner=await self._start_learner(spec, roles),
            groups=self._pool,
        )

    async def close(self) -> None:
        """End every process. This also works after a start that failed."""
        failed = self._supervisor.failure is not None
        try:
            if self._pool is not None:
                self._pool.crew.close()
            if self._router is not None:
                await self._router.close()
            self._supervisor.close()
            if ray.is_initialized():
                await self._end_processes()
        finally:
            self._cluster.close(keep_logs=failed)
            if failed and self._cluster.logs is not None:
                log.warning("logs of the failed processes are in %s", self._cluster.logs)
            self._placement_groups.clear()
            self._actors.clear()
            self._router = self._pool = None

    async def _reserve(self, roles: Sequence[str], spec: RuntimeSpec) -> ProcessLayout:
        """Ask Ray for the bundles, check all machines while Ray looks for the bundles, and return the layout.

        Raises:
            ConfigError: the bundles do not fit into the cluster, or a machine lacks a folder or a model.
            FingerprintMismatch: a machine has other plugins or versions.
        """
        nodes = preflight.alive_nodes()
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        layout = plan_layout(
            self._config,
            roles,
            has_gpus=resources.get("GPU", 0) > 0,
            has_engine=spec.engine is not None,
        )
        require_room(layout, resources)
        preflight.require_bundles_fit(layout, nodes)
        for part in layout.colocations:
            bundles = [part.bundle for _ in range(part.num_bundles)]
            strategy = "SPREAD" if part.spread else "PACK"
            self._placement_groups[part] = placement_group(bundles, strategy=strategy)
        await preflight.inspect_nodes(
            nodes,
            self._driver,
            spec,
            layout,
            self._supervisor,
            self._config.preflight_timeout_s,
        )
        await preflight.reserve(self._placement_groups, self._config.start_timeout_s)
        placed = preflight.describe_placement(layout, self._placement_groups, nodes)
        log.info("placement:\n%s", placed)
        _say_idle(layout, resources.get("GPU", 0.0))
        return layout

    async def _start_roles(self, spec: RuntimeSpec, plugins: Plugins) -> dict[str, RayRole]:
        """Start all ranks of all roles at the same time, then load all models."""
        counts, batches = self._layout.counts, SharedBatches()

        async def start(name: str) -> RayRole:
            ranks = await all_of(self._process(RankActor, name, i) for i in range(counts[name]))
            together = rows_per_unit(spec.roles[name].objective, plugins)
            return RayRole(ranks, self._supervisor, batches, self._config, together)

        started = await all_of(start(name) for name in spec.roles)
        roles: dict[str, RayRole] = dict(zip(spec.roles, started, strict=True))
        await all_of(self._set_up(role, spec.roles[name], spec) for name, role in roles.items())
        return roles

    async def _set_up(self, role: RayRole, role_spec: RoleSpec, spec: RuntimeSpec) -> None:
        """Load a role's model on all its ranks, and watch them from then on."""
        await role.set_up(role_spec, spec.backend)
        for process in role.ranks:
            self._supervisor.watch(process.actor.watch.remote(), process.who, role.lose)

    def _make_router(self, spec: RuntimeSpec, policy: RayRole) -> EngineRouter:
        delivery = WeightDelivery(policy, self._supervisor, self._config)

        async def launch(index: int) -> ActorProcess:
            process = await self._process(EngineActor, ENGINE, index)
            built = process.actor.build.remote(spec.engine, spec.engine_spec, delivery.direct)
            with killed_on_error(process.actor):
                receivers = await self._supervisor.result(
                    built, process.who, "build", self._config.setup_timeout_s
                )
                delivery.enroll(process, receivers)
            return process

        return EngineRouter(launch, delivery, self._supervisor, self._config)

    async def _start_pool(self, spec: RuntimeSpec, plugins: Plugins) -> None:
        """Start the rollout workers, if the run has any, and before them the process of rewards that need one place."""
        rollouts = spec.rollouts
        if ROLLOUT not in self._layout.counts or rollouts is None:
            return
        judge = None
        if rollouts.rewards and not rewards_in_workers(self._config, rollouts, plugins):
            judge = await self._start_judge(rollouts)
            rollouts = replace(rollouts, rewards=())

        async def launch(index: int) -> ActorProcess:
            return await self._process(RolloutActor, ROLLOUT, index)

        self._pool = RolloutPool(launch, rollouts, self._supervisor, self._config, judge)
        await self._pool.crew.start_all(self._layout.counts[ROLLOUT])

    async def _start_judge(self, rollouts: RolloutSpec) -> ActorProcess:
        """Start the process of the rewards on the driver's machine, beside all bundles."""
        here = ray.get_runtime_context().get_node_id()
        process = await self._prepared(
            RewardActor,
            REWARDS,
            threads=self._config.threads or len(os.sched_getaffinity(0)),
            num_cpus=0,
            num_gpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=here, soft=False),
        )
        variables = {name: os.environ.get(name) for name in SET_BY_RAY}
        with killed_on_error(process.actor):
            await self._supervisor.result(
                process.actor.start.remote(rollouts, variables),
                process.who,
                "start",
                self._config.setup_timeout_s,
            )
        self._supervisor.watch(process.actor.watch.remote(), process.who, self._lose_judge)
        return process

    async def _start_learner(
        self, spec: RuntimeSpec, roles: Mapping[str, RayRole]
    ) -> RemoteLearner | None:
        """Start the learner's process in the bundle of the policy's first rank; return None if the driver learns."""
        config, choice = self._config, self._config.learner
        # A learner is built from the run's configuration. A caller other than the loop may ask for roles without one.
        wants_one = self._pool is not None and bool(spec.config)
        if choice == "driver" or (choice == "auto" and not wants_one):
            return None
        process = await self._process(LearnerActor, "policy", 0, called=LEARNER)
        ranks = {name: role.ranks for name, role in roles.items()}
        with killed_on_error(process.actor):
            await self._supervisor.result(
                process.actor.start.remote(spec.config, ranks, config),
                process.who,
                "start",
                config.setup_timeout_s,
            )
        self._supervisor.watch(process.actor.watch.remote(), process.who, self._lose_learner)
        return RemoteLearner(process, roles, self._supervisor, config.learn_timeout_s)

    def _lose_judge(self, error: ProcessLost) -> None:
        self._supervisor.fail(
            ProcessLost(
                f"{error}. The run ends; --resume auto continues from the newest checkpoint",
                code="ray/process-lost",
            )
        )

    def _lose_learner(self, error: ProcessLost) -> None:
        self._supervisor.fail(
            ProcessLost(
                f"{error}. It may have changed the weights in part, so the run ends; --resume auto continues from the "
                "newest checkpoint",
                code="ray/process-lost",
            )
        )

    async def _process(
        self, kind: type, name: str, index: int, *, called: str | None = None
    ) -> ActorProcess:
        """Start an actor in a bundle, and make its process like this one.

        Args:
            kind: class of the actor.
            name: role, ``ENGINE`` or ``ROLLOUT``; the actor is in bundle ``index`` of this name's colocation.
            called: name in messages of an actor that is a guest in the bundle, and takes none of its CPUs and GPUs.

        Raises:
            ProcessLost: the process died, missed its deadline, or found no place.
            FingerprintMismatch: the process has other plugins, versions or files.
        """
        part = self._layout.of(name)
        who = called or f"{CALLED.get(name, f'{name} rank')} {index}"
        try:
            return await self._prepared(
                kind,
                who,
                threads=self._config.threads or max(1, int(part.cpus)),
                num_cpus=0 if called else part.cpus_per_process,
                num_gpus=0 if called else part.gpus_per_process,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=self._placement_groups[part],
                    placement_group_bundle_index=index,
                ),
            )
        except ProcessLost as error:
            preflight.require_granted(part, self._placement_groups[part], who, error)
            raise

    async def _prepared(
        self, kind: type, who: str, *, threads: int, **options: Any
    ) -> ActorProcess:
        """Start an actor with Ray's ``options``, make its process like this one, and return it.

        Raises:
            ProcessLost: the process died, missed its deadline, or found no place.
            FingerprintMismatch: the process has other plugins, versions or files.
        """
        remote: Any = ray.remote(kind)  # Ray makes a handle's methods at run time
        actor = remote.options(
            max_restarts=0, max_task_retries=0, max_concurrency=MAX_CALLS, **options
        ).remote()
        self._actors.append(actor)
        prepared = actor.prepare.remote(self._driver, who, threads)
        with killed_on_error(actor):
            info: ProcessInfo = await self._supervisor.result(
                prepared, who, "prepare", self._config.start_timeout_s
            )
        return ActorProcess(actor, f"{who} (pid {info.pid} on {info.host})")

    async def _end_processes(self) -> None:
        """Have each actor close itself, then kill it: Ray would wait for an actor as long as for its machine."""
        closing = [actor.close.remote() for actor in self._actors]
        if closing:
            with contextlib.suppress(RayError):
                await asyncio.to_thread(
                    ray.wait,
                    closing,
                    num_returns=len(closing),
                    timeout=self._config.close_timeout_s,
                    fetch_local=False,
                )
        for actor in self._actors:
            ray.kill(actor)
        for reserved in self._placement_groups.values():
            remove_placement_group(reserved)


def _say_idle(layout: ProcessLayout, gpus: float) -> None:
    """Log how many of the cluster's GPUs the run leaves idle, if any."""
    idle = gpus - sum(part.num_bundles * part.gpus for part in layout.colocations)
    if idle >= 1:
        log.info(
            "%d of the cluster's %d GPUs stay idle: runtime.ray.gpus %d would use all",
            idle,
            gpus,
            gpus,
        )


def _require_ranks_fit(config: RayRuntimeConfig, spec: RuntimeSpec, plugins: Plugins) -> None:
    """Refuse several ranks of a backend that trains in one process only."""
    backend = plugins.get(spec.backend.kind, spec.backend.name)
    many = [f"runtime.ray.ranks.{role} = {num}" for role, num in config.ranks.items() if num > 1]
    if config.gpus is not None and config.gpus > 1 and not set(spec.roles) <= set(config.ranks):
        many.append(f"runtime.ray.gpus = {config.gpus}")
    if many and SEVERAL_RANKS not in backend.component.provides:
        raise ConfigError(
            f"{', '.join(many)}: --backend {backend.name} trains in one process only; choose a backend that provides "
            f"{SEVERAL_RANKS!r}, such as deepspeed, or leave the role at 1 rank",
            code="ranks/one-process",
        )


def rewards_in_workers(config: RayRuntimeConfig, rollouts: RolloutSpec, plugins: Plugins) -> bool:
    """Return True if each rollout worker computes the rewards of its own episodes; False: one process does for all."""
    if config.rewards != "auto":
        return config.rewards == "workers"
    components = [each.component for each in rollouts.rewards]
    return not any(
        ONE_PROCESS in plugins.get(c.kind, c.name).component.provides for c in components
    )

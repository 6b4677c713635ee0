"""Options of the Ray runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from rlhf_core import Config
from rlhf_core.capabilities import SEVERAL_RANKS
from rlhf_core.contracts import ProcessLayout, WeightWay

from .layout import plan_layout

Ranks = Annotated[int, Field(ge=1, le=65536)]
Cpus = Annotated[float, Field(gt=0, le=1024)]
Gpus = Annotated[float, Field(ge=0, le=64)]


class RayRuntimeConfig(Config):
    """Placement of the run's processes, their resources, and the deadlines of the driver's waits."""

    address: str | None = Field(
        None,
        description="address of an existing cluster (auto: this node's cluster). Unset: the variable RAY_ADDRESS if it "
        "is set, else a new cluster on this machine, which ends with the run",
    )
    cpus: int | None = Field(
        None,
        ge=1,
        description="CPUs of a new cluster; unset: the CPUs available to this process",
    )
    object_store_mib: int | None = Field(
        None,
        ge=80,
        description="shared memory of a new cluster, in MiB; unset: Ray's choice, a share of the memory",
    )
    gpus: int | None = Field(
        None,
        ge=1,
        le=65536,
        description="number of GPUs that all roles and engines share; each role has as many ranks, and there are as "
        "many engines, unless ranks or engines say otherwise. --gpus sets it",
    )
    ranks: Mapping[str, Ranks] = Field(
        {},
        description="number of processes of each role, such as ranks.policy = 4; a role that is not named has gpus, "
        "or 1",
    )
    engines: int | None = Field(
        None,
        ge=1,
        le=65536,
        description="number of engines, each in a process of its own; unset: gpus, or 1",
    )
    colocate: tuple[str, ...] | None = Field(
        None,
        description="sets of roles and engine that share machines and GPUs, such as policy+reference+engine; a role in "
        "no set is placed alone. Unset: all roles and the engine in one set",
    )
    cpus_per: Mapping[str, Cpus] = Field(
        {},
        description="CPUs of each process by role name, also cpus_per.engine and cpus_per.rollout (rollout workers); "
        "unset: 1. Processes that share a set divide the largest number among them",
    )
    gpus_per: Mapping[str, Gpus] = Field(
        {},
        description="GPUs of each process by role name, of each engine as gpus_per.engine; a process that is not named "
        "has 1 if the cluster has GPUs, else 0",
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads of torch in each process; unset: the number of CPUs of the process's set, at least 1",
    )
    max_engine_restarts: int = Field(
        3,
        ge=0,
        le=1000,
        description="number of times in a run that a new engine replaces a dead one. Another engine gets the requests "
        "of a dead engine in any case; the run ends when no engine is left",
    )
    rollout_workers: int = Field(
        0,
        ge=0,
        le=65536,
        description="number of processes that run executors and environments, each with cpus_per.rollout CPUs and no "
        "GPU. 0: the driver runs executors and environments, on one core",
    )
    rewards: Literal["auto", "workers", "driver"] = Field(
        "auto",
        description="where rewards are computed if there are rollout workers. workers: each worker for its own "
        "episodes; driver: one process on the driver's machine, which all workers ask; auto: workers, unless a "
        "reward should exist once only, such as one with a model",
    )
    learner: Literal["auto", "process", "driver"] = Field(
        "auto",
        description="process that turns batches into advantages and minibatches. process: one of its own beside the "
        "policy's first rank, so that tokens do not come to the driver; auto: process if there are rollout workers, "
        "else driver",
    )
    max_rollout_restarts: int = Field(
        3,
        ge=0,
        le=1000,
        description="number of times in a run that a new rollout worker replaces a dead one. Another worker gets the "
        "episodes of a dead worker in any case; the run ends when no worker is left",
    )
    weights: WeightWay = Field(
        "auto",
        description="how weights reach engines. store: Ray's object store; memory: memory that rank and engine "
        "share, of one GPU (CUDA IPC) or, without GPUs, of one machine; collective: a broadcast by NCCL or, between "
        "CPUs, gloo; auto: store if the policy has no GPU, else memory for engines on its GPU and collective for "
        "others",
    )
    bucket_mib: int = Field(
        256,
        ge=1,
        le=16384,
        description="size of one bucket of weights with memory or collective, in MiB. Either end of a collective holds "
        "two buffers of this size; both ends of memory hold two together",
    )
    preflight_timeout_s: float = Field(
        10.0,
        gt=0,
        description="seconds for a machine's report before any model is loaded; a later machine gives only a warning",
    )
    start_timeout_s: float = Field(
        120.0,
        gt=0,
        description="seconds for Ray to place a process, and for it to import the plugins",
    )
    setup_timeout_s: float = Field(1800.0, gt=0, description="seconds for loading a model")
    call_timeout_s: float = Field(
        3600.0, gt=0, description="seconds for one pass or one update of a role, or for one save"
    )
    generate_timeout_s: float = Field(
        1800.0,
        gt=0,
        description="seconds for one request to an engine; an engine that is later counts as dead",
    )
    rollout_timeout_s: float = Field(
        3600.0,
        gt=0,
        description="seconds for all episodes of one prompt in a rollout worker; a worker that is later counts as dead",
    )
    learn_timeout_s: float = Field(
        14400.0,
        gt=0,
        description="seconds for all updates from one batch, where a separate process learns",
    )
    sync_timeout_s: float = Field(
        600.0,
        gt=0,
        description="seconds for ranks to publish new weights, and for an engine to take them over",
    )
    close_timeout_s: float = Field(
        10.0, gt=0, description="seconds for a process to end by itself before it is killed"
    )
    show_output: bool = Field(True, description="print the output of the actors' processes")

    def needed_by_options(self) -> frozenset[str]:
        """Return the need of a role with several ranks. A role that is not named may be none of the run's, but for the
        policy."""
        spread = self.gpus is not None and self.gpus > 1 and "policy" not in self.ranks
        several = spread or any(number > 1 for number in self.ranks.values())
        return frozenset({SEVERAL_RANKS} if several else ())

    @property
    def for_engines(self) -> frozenset[str]:
        """Options about engines, about rollouts and about the ways of weights to engines."""
        return frozenset(
            {
                "engines",
                "max_engine_restarts",
                "rollout_workers",
                "rewards",
                "learner",
                "max_rollout_restarts",
                "weights",
                "bucket_mib",
                "generate_timeout_s",
                "rollout_timeout_s",
                "learn_timeout_s",
                "sync_timeout_s",
            }
        )

    def layout(
        self, roles: Sequence[str], *, has_gpus: bool, has_engine: bool = True
    ) -> ProcessLayout:
        """Return which processes share what, as far as the options alone say it.

        Raises:
            ConfigError: they contradict each other, or name a role that the run does not have.
        """
        return plan_layout(self, roles, has_gpus=has_gpus, has_engine=has_engine)

    def placement(self, roles: Sequence[str], *, has_engine: bool = True) -> list[str]:
        """Return lines that say which processes share bundles, as far as the options alone determine it.

        Raises:
            ConfigError: options contradict each other, or name a role that the run does not have.
        """
        layout = self.layout(roles, has_gpus=True, has_engine=has_engine)
        lines = layout.describe().splitlines()
        if any(
            part.gpus and name not in self.gpus_per
            for part in layout.colocations
            for name in part.names
        ):
            lines.append("where runtime.ray.gpus_per is not set: GPUs only if the cluster has any")
        return lines

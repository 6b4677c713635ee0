"""Options of the Ray runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from rlhf_core import Config

from .layout import plan_layout

Ranks = Annotated[int, Field(ge=1, le=65536)]
Cpus = Annotated[float, Field(gt=0, le=1024)]
Gpus = Annotated[float, Field(ge=0, le=64)]


class RayRuntimeConfig(Config):
    """Where actors live, what they get, and how long the driver waits for them."""

    address: str | None = Field(
        None,
        description="of an existing cluster (auto: the one of this node). Unset: RAY_ADDRESS where that is set, else a "
        "cluster of this machine's own, which ends with the run",
    )
    cpus: int | None = Field(
        None,
        ge=1,
        description="CPUs that a cluster of the run's own may fill; unset: those available to this process",
    )
    object_store_mib: int | None = Field(
        None,
        ge=80,
        description="shared memory of a cluster of the run's own, in MiB; unset: Ray's choice, a share of the memory",
    )
    ranks: Mapping[str, Ranks] = Field(
        {},
        description="processes by role, such as ranks.policy = 4; a role that is not named has 1",
    )
    engines: int = Field(1, ge=1, le=65536, description="engines, each in a process of its own")
    colocate: tuple[str, ...] | None = Field(
        None,
        description="sets that share machines and GPUs, written policy+reference+engine; what is in no set is placed "
        "alone. Unset: everything in one set",
    )
    cpus_per: Mapping[str, Cpus] = Field(
        {},
        description="CPUs of each process by role name, of each engine as cpus_per.engine, of each rollout worker as "
        "cpus_per.rollout; what is not named has 1. "
        "A set gets the largest of its members' and divides it",
    )
    gpus_per: Mapping[str, Gpus] = Field(
        {},
        description="GPUs likewise; what is not named has 1 where the cluster has GPUs, else 0",
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads of torch in each process; unset: the CPUs that its set was given, at least 1",
    )
    max_engine_restarts: int = Field(
        3,
        ge=0,
        le=1000,
        description="times in a run that an engine which died is started anew. Its requests are sent to another engine "
        "in any case; the run ends when none is left",
    )
    rollout_workers: int = Field(
        0,
        ge=0,
        le=65536,
        description="processes that run executors and environments, each with cpus_per.rollout CPUs and no GPU. 0: the "
        "driver runs them, on one core",
    )
    rewards: Literal["auto", "workers", "driver"] = Field(
        "auto",
        description="where rewards are computed, if there are rollout workers. workers: in each, beside its episodes, "
        "so that tokens and texts do not come to the driver; driver: once; auto: in workers, unless a reward holds "
        "what there should be one of, such as a model",
    )
    learner: Literal["auto", "process", "driver"] = Field(
        "auto",
        description="where batches become advantages and minibatches. process: in one beside the policy's first rank, "
        "so that tokens do not come to the driver; auto: there, if rewards are computed in rollout workers",
    )
    max_rollout_restarts: int = Field(
        3,
        ge=0,
        le=1000,
        description="times in a run that a rollout worker which died is started anew. Its episodes are sent to another "
        "in any case; the run ends when none is left",
    )
    weights: Literal["auto", "store", "memory", "collective"] = Field(
        "auto",
        description="how weights reach engines. store: the object store, through the host's memory; memory: what rank "
        "and engine share, of one GPU (CUDA IPC) or, without GPUs, of one machine; collective: a broadcast, by NCCL "
        "between GPUs and by gloo between CPUs; auto: store where the policy has no GPU, else memory on the same GPU "
        "and collective to another",
    )
    bucket_mib: int = Field(
        256,
        ge=1,
        le=16384,
        description="weights that are handed over at once by memory or collective; two such buffers are held on either "
        "side of a collective, and two in all of memory",
    )
    preflight_timeout_s: float = Field(
        10.0,
        gt=0,
        description="for a machine to tell, before any model is loaded, what it has of what the run needs; one that is "
        "later is only warned of",
    )
    start_timeout_s: float = Field(
        120.0, gt=0, description="for a process to be placed and to import the plugins"
    )
    setup_timeout_s: float = Field(1800.0, gt=0, description="for a model to be loaded")
    call_timeout_s: float = Field(
        3600.0, gt=0, description="for one pass or one optimizer step of a role, or one save"
    )
    generate_timeout_s: float = Field(
        1800.0,
        gt=0,
        description="for one request to an engine; an engine that is later is taken for dead",
    )
    rollout_timeout_s: float = Field(
        3600.0,
        gt=0,
        description="for all episodes of one prompt in a rollout worker; a worker that is later is taken for dead",
    )
    learn_timeout_s: float = Field(
        14400.0, gt=0, description="for everything that is learned from one batch, by a process"
    )
    sync_timeout_s: float = Field(
        600.0, gt=0, description="for new weights to be published, and to be taken over"
    )
    close_timeout_s: float = Field(
        10.0, gt=0, description="for a process to end by itself before it is killed"
    )
    show_output: bool = Field(True, description="print what the actors' processes print")

    def placement(self, roles: Sequence[str]) -> list[str]:
        """Return which processes share what, as far as the options alone say it.

        Raises:
            ConfigError: they contradict each other, or name a role that the run does not have.
        """
        layout = plan_layout(self, roles, has_gpus=True)
        lines = layout.describe().splitlines()
        if any(
            part.gpus and name not in self.gpus_per
            for part in layout.colocations
            for name in part.names
        ):
            lines.append("where runtime.ray.gpus_per is not set: GPUs only if the cluster has any")
        return lines

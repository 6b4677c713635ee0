"""Checks of every machine before a model is loaded on any, and the table of which process runs where.

A run that is certain to fail ends with an error that names the machine and the fix. A machine on which a run may be
slow, or may fail later, gives a warning.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlhf_core import ConfigError, FingerprintMismatch
from rlhf_core.contracts import Colocation, ProcessLayout, RuntimeSpec

from ..processes.process import Driver
from ..processes.supervisor import ProcessLost, Supervisor, all_of
from .gpu_memory import gpu_needs, gpu_warnings, require_gpus_fit
from .node_report import NodeReport, inspect_node

log = logging.getLogger(__name__)

BYTES_PER_TOKEN = 64
"""Bytes of one token of a batch in the object store: id, mask, log-probs and version, and the columns of an update."""
GRANTED = "CREATED"
"""Ray's word for the state of a placement group that has all its bundles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine of the cluster, as Ray describes it."""

    id: str
    address: str
    resources: Mapping[str, float]
    """Amount of each resource that the machine has, used or not, by Ray's name."""

    def amount(self, resource: str) -> float:
        """Return the amount of a resource; 0 if the machine has none."""
        return self.resources.get(resource, 0.0)


def alive_nodes() -> list[Node]:
    """Return the machines that are part of the cluster now, sorted by address."""
    nodes = [
        Node(id=node["NodeID"], address=node["NodeManagerAddress"], resources=node["Resources"])
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"]
    ]
    return sorted(nodes, key=lambda node: (node.address, node.id))


def require_bundles_fit(layout: ProcessLayout, nodes: Sequence[Node]) -> None:
    """Refuse bundles that no single machine could hold, and more bundles than the machines could hold when idle.

    Raises:
        ConfigError: names the bundle, the resources of the machines, and the options.
    """
    for part in layout.colocations:
        room = sum(_num_bundles(node, part.bundle) for node in nodes)
        if room >= part.num_bundles:
            continue
        resources = "; ".join(f"{node.address} has {_resources(node)}" for node in nodes[:4])
        who = (
            f"{' + '.join(part.names)}: each process set needs {part.cpus:g} CPUs and {part.gpus:g} GPUs on one "
            "machine"
        )
        if room:
            raise ConfigError(
                f"{who}, which {part.num_bundles} sets have to find and only {room} can: {resources}. Choose "
                "runtime.ray.gpus_per and cpus_per that divide what machines have, fewer processes, or more machines.",
                code="ray/too-few-resources",
            )
        raise ConfigError(
            f"{who}, and no machine of the cluster has that: {resources}. Lower runtime.ray.cpus_per or gpus_per, "
            "or add a larger machine.",
            code="ray/too-few-resources",
        )


def _num_bundles(node: Node, bundle: Mapping[str, float]) -> int:
    """Return how many times an idle machine could hold a bundle."""
    # The margin is for shares of a GPU that binary numbers round: ten times 0.1 fit into 1.
    return min(int(node.amount(name) / amount + 1e-6) for name, amount in bundle.items())


async def inspect_nodes(
    nodes: Sequence[Node],
    driver: Driver,
    spec: RuntimeSpec,
    layout: ProcessLayout,
    supervisor: Supervisor,
    timeout_s: float,
) -> None:
    """Check the reports of all machines, which the driver asks for at the same time and for at most ``timeout_s``.

    A machine that does not answer in time gives a warning: its processes are checked again when they start, with
    deadlines of their own.

    Raises:
        ConfigError: a machine lacks the working directory or a model, or no GPU could hold an engine's weights.
        FingerprintMismatch: a machine has other plugins or versions.
    """
    paths = _local_paths(spec, driver.folder)

    async def ask(node: Node) -> NodeReport | None:
        who = f"the machine {node.address}"
        affinity = NodeAffinitySchedulingStrategy(node_id=node.id, soft=False)
        task = ray.remote(inspect_node).options(
            num_cpus=0, max_retries=0, scheduling_strategy=affinity
        )
        reference = task.remote(driver, paths, who)
        try:
            report: NodeReport = await supervisor.result(reference, who, "preflight", timeout_s)
        except ProcessLost as error:
            ray.cancel(reference, force=True)
            log.warning("preflight: %s; going on without its answer", error)
            return None
        return report

    reports: list[NodeReport | None] = await all_of(ask(node) for node in nodes)
    answered = [(node, report) for node, report in zip(nodes, reports, strict=True) if report]
    for node, report in answered:
        _require(node, report, driver)
    needs = gpu_needs(layout, spec, driver.folder)
    require_gpus_fit(needs, {node.address: report.gpus for node, report in answered})
    for node, report in answered:
        warnings = warnings_of(node, report, batch_bytes(spec))
        for warning in warnings + gpu_warnings(needs, node.address, report.gpus):
            log.warning("preflight: %s", warning)


def _require(node: Node, report: NodeReport, driver: Driver) -> None:
    where = f"the machine {node.address} ({report.host})"
    if not report.has_folder:
        raise ConfigError(
            f"{where} has no folder {driver.folder}, in which the run was started; start it from a file system that "
            "all machines share",
            code="ray/files-missing",
        )
    if report.differing is not None:
        raise FingerprintMismatch(report.differing)
    if report.missing:
        raise ConfigError(
            f"{where} does not see {', '.join(report.missing)}, which the driver does; put models and, for "
            "images, --output on a file system that all machines share, or copy models there under the same path",
            code="ray/files-missing",
        )


def warnings_of(node: Node, report: NodeReport, batch: int) -> list[str]:
    """Return a warning for each property of a machine that may make the run slow, or fail later.

    Args:
        batch: bytes of one batch in the object store.
    """
    store = node.amount("object_store_memory")
    found = []
    if store and 2 * batch > store:
        found.append(
            f"a batch can take {_mib(batch)}, and two of them do not fit into the {_mib(store)} of {node.address}'s "
            "object store, so Ray may move some to disk; raise runtime.ray.object_store_mib"
        )
    if store and report.shared_memory_bytes is not None and store > report.shared_memory_bytes:
        found.append(
            f"{node.address}'s object store of {_mib(store)} is larger than its /dev/shm of "
            f"{_mib(report.shared_memory_bytes)}, so Ray uses a disk instead, which is slow; enlarge /dev/shm (in "
            "Docker: --shm-size) or lower runtime.ray.object_store_mib"
        )
    free = report.free_memory_bytes
    if free is not None and report.model_bytes > free:
        found.append(
            f"{node.address} has {_mib(free)} of memory left, less than the {_mib(report.model_bytes)} of the largest "
            "model's files; loading it may end a process"
        )
    return found


def batch_bytes(spec: RuntimeSpec) -> int:
    """Return the most bytes that a batch can take in the object store, with all sequences at their longest; 0 without
    an engine, whose spec has these numbers."""
    engine = spec.engine_spec
    if engine is None:
        return 0
    return engine.max_concurrency * engine.max_length * BYTES_PER_TOKEN


async def reserve(placement_groups: Mapping[Colocation, PlacementGroup], timeout_s: float) -> None:
    """Wait until Ray has granted all bundles.

    Raises:
        ConfigError: Ray has not granted some bundles in time; names these bundles and the free resources.
    """
    deadline = time.monotonic() + timeout_s
    for part, placement_group in placement_groups.items():
        while not await asyncio.to_thread(placement_group.wait, 1):
            if time.monotonic() < deadline:
                continue
            free = ray.available_resources()  # type: ignore[no-untyped-call]
            left = ", ".join(f"{free.get(name, 0):g} of {name}" for name in part.bundle)
            raise ConfigError(
                f"the cluster did not grant {part.num_bundles} x {part.bundle} for {' + '.join(part.names)} within "
                f"{timeout_s:g} s (runtime.ray.start_timeout_s); free are {left}. Other programs hold the rest of the "
                "cluster, or the free resources are split over machines: see `ray status`.",
                code="ray/too-few-resources",
            )


def require_granted(
    part: Colocation, placement_group: PlacementGroup, who: str, error: ProcessLost
) -> None:
    """Refuse to go on if a process could not start because its machine is gone and no other can hold its bundle.

    Args:
        who: name of the process in messages.
        error: the error with which the process did not start.

    Raises:
        ProcessLost: Ray has no place for the bundle; names the machines and their resources.
    """
    table: dict[str, Any] = placement_group_table(placement_group)
    if table.get("state") == GRANTED:
        return
    machines = ", ".join(f"{node.address} has {_resources(node)}" for node in alive_nodes())
    raise ProcessLost(
        f"{who} has no place: its machine is gone, and no other has {part.bundle} to spare ({machines}). Add a machine",
        code="ray/machine-gone",
    ) from error


def describe_placement(
    layout: ProcessLayout,
    placement_groups: Mapping[Colocation, PlacementGroup],
    nodes: Sequence[Node],
) -> str:
    """Return a table of which processes run on which machine, with one line for each colocation and machine."""
    address_of = {node.id: node.address for node in nodes}
    rows: list[tuple[str, str, str]] = [("machine", "each has", "processes")]
    for part, placement_group in placement_groups.items():
        table: dict[str, Any] = placement_group_table(placement_group)
        on_node: dict[str, list[int]] = {}
        for index, node_id in sorted(table["bundles_to_node_id"].items()):
            on_node.setdefault(address_of.get(node_id, node_id), []).append(int(index))
        gpus = f", {part.gpus:g} GPU" if part.gpus else ""
        for address, indices in on_node.items():
            members = [
                f"{name} {_ranges([i for i in indices if i < layout.counts[name]])}"
                for name in part.names
                if indices[0] < layout.counts[name]
            ]
            rows.append((address, f"{part.cpus:g} CPU{gpus}", " + ".join(members)))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {members}" for a, b, members in rows)


def _ranges(indices: Sequence[int]) -> str:
    """Return ascending indices as text such as ``0-3,5``."""
    parts: list[list[int]] = []
    for index in indices:
        if parts and index == parts[-1][-1] + 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else f"{p[0]}" for p in parts)


def _local_paths(spec: RuntimeSpec, folder: Path) -> tuple[str, ...]:
    """Return the models and tokenizers that exist as local paths, and the run's folder if images are kept in it.

    Other models are names on a hub.
    """
    named = [
        path for role in spec.roles.values() for path in (role.model_path, role.tokenizer_path)
    ]
    if spec.rollouts is not None:
        named.append(spec.rollouts.tokenizer_path)
    named += [
        str(Path(role.vision.media_folder).parent) for role in spec.roles.values() if role.vision
    ]
    return tuple(sorted({path for path in named if path and (folder / path).exists()}))


def _resources(node: Node) -> str:
    return f"{node.amount('CPU'):g} CPUs and {node.amount('GPU'):g} GPUs"


def _mib(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:.0f} MiB"

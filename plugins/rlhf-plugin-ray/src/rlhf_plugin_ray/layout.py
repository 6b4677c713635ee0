"""The layout: which processes share a bundle of resources, and what each process is given. Imports no Ray."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from rlhf_core import ConfigError
from rlhf_core.contracts import ENGINE, ROLLOUT, Colocation, ProcessLayout, WeightWay


class LayoutOptions(Protocol):
    """The options that a layout follows from; ``RayRuntimeConfig`` describes each of them."""

    @property
    def gpus(self) -> int | None: ...

    @property
    def ranks(self) -> Mapping[str, int]: ...

    @property
    def engines(self) -> int | None: ...

    @property
    def rollout_workers(self) -> int: ...

    @property
    def colocate(self) -> tuple[str, ...] | None: ...

    @property
    def cpus_per(self) -> Mapping[str, float]: ...

    @property
    def gpus_per(self) -> Mapping[str, float]: ...

    @property
    def weights(self) -> WeightWay: ...


def plan_layout(
    config: LayoutOptions, roles: Sequence[str], *, has_gpus: bool, has_engine: bool = True
) -> ProcessLayout:
    """Return which processes share bundles, and how large the bundles are.

    Args:
        roles: names of the run's roles.
        has_gpus: True if the cluster has GPUs, so that each process has one by default.
        has_engine: False if nothing generates in this run, which then has neither engines nor rollout workers.

    Raises:
        ConfigError: an option names a role that the run does not have, or options contradict each other.
    """
    require_known_names(config, roles, has_engine=has_engine)
    names = _names(roles, has_engine)
    each = config.gpus or 1
    counts = {role: config.ranks.get(role, each) for role in roles}
    if has_engine:
        counts[ENGINE] = config.engines or each
    default_gpus = 1.0 if has_gpus else 0.0
    colocations = []
    for members in _sets(config.colocate, names):
        gpus = {name: config.gpus_per.get(name, default_gpus) for name in members}
        if len(set(gpus.values())) > 1:
            raise ConfigError(
                f"runtime.ray.colocate puts {' + '.join(members)} on the same GPUs, but they ask for "
                f"{', '.join(f'{name} {amount:g}' for name, amount in gpus.items())}. "
                "Give them equal runtime.ray.gpus_per, or place them apart.",
                code="ray/unequal-shares",
            )
        if len(members) > 1 and gpus[members[0]] > 1:
            raise ConfigError(
                f"{' + '.join(members)} would share {gpus[members[0]]:g} GPUs a process; processes that share can "
                "have at most one GPU each. Place them apart with runtime.ray.colocate.",
                code="ray/several-gpus",
            )
        colocations.append(
            Colocation(
                names=members,
                num_bundles=max(counts[name] for name in members),
                cpus=max(config.cpus_per.get(name, 1.0) for name in members),
                gpus=gpus[members[0]],
            )
        )
    if has_engine and config.rollout_workers:
        counts[ROLLOUT] = config.rollout_workers
        colocations.append(
            Colocation(
                names=(ROLLOUT,),
                num_bundles=config.rollout_workers,
                cpus=config.cpus_per.get(ROLLOUT, 1.0),
                gpus=0.0,
                spread=True,
            )
        )
    return ProcessLayout(counts=counts, colocations=tuple(colocations), weights=config.weights)


def require_known_names(
    config: LayoutOptions, roles: Sequence[str], *, has_engine: bool = True
) -> None:
    """Refuse options with a name that the run does not have, and a name that ``colocate`` has twice.

    This check needs no cluster.

    Raises:
        ConfigError: names the option, and the names that the run has.
    """
    names = _names(roles, has_engine)
    _require_known("ranks", config.ranks, roles)
    workers = (ROLLOUT,) if has_engine and config.rollout_workers else ()
    _require_known("cpus_per", config.cpus_per, (*names, *workers))
    _require_known("gpus_per", config.gpus_per, names)
    mentioned = [name for members in _words(config.colocate) for name in members]
    _require_known("colocate", mentioned, names)
    if twice := sorted({name for name in mentioned if mentioned.count(name) > 1}):
        raise ConfigError(
            f"runtime.ray.colocate names {', '.join(twice)} more than once; each can be in one set",
            code="ray/colocated-twice",
        )


def require_room(layout: ProcessLayout, available: Mapping[str, float]) -> None:
    """Refuse a layout that the whole cluster could never hold.

    Args:
        available: amount of each resource in the whole cluster, by Ray's name.

    Raises:
        ConfigError: names the missing resource and the options that ask for it.
    """
    for resource in ("CPU", "GPU"):
        needed = sum(
            part.num_bundles * part.bundle.get(resource, 0.0) for part in layout.colocations
        )
        there = available.get(resource, 0.0)
        if needed > there:
            raise ConfigError(
                f"the run needs {needed:g} {resource}s, the Ray cluster has {there:g}:\n"
                + "".join(f"  {line}\n" for line in layout.describe().splitlines())
                + "Lower runtime.ray.ranks, engines, cpus_per or gpus_per, let more processes share bundles with "
                "runtime.ray.colocate, or add nodes.",
                code="ray/too-few-resources",
            )


def _names(roles: Sequence[str], has_engine: bool) -> tuple[str, ...]:
    return (*roles, ENGINE) if has_engine else tuple(roles)


def _sets(colocate: tuple[str, ...] | None, names: tuple[str, ...]) -> list[tuple[str, ...]]:
    if colocate is None:
        return [names]
    sets = _words(colocate)
    mentioned = {name for members in sets for name in members}
    return [*sets, *((name,) for name in names if name not in mentioned)]


def _words(colocate: tuple[str, ...] | None) -> list[tuple[str, ...]]:
    return [tuple(word.strip() for word in text.split("+")) for text in colocate or ()]


def _require_known(option: str, given: Iterable[str], names: Sequence[str]) -> None:
    if unknown := sorted(set(given) - set(names)):
        raise ConfigError(
            f"runtime.ray.{option} names {', '.join(unknown)}; this run has {', '.join(names)}",
            code="ray/unknown-process",
        )

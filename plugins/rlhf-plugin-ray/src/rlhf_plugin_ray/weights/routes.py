"""The choice of the route by which weights reach an engine, as pure functions of the places of ranks and receivers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_core import ConfigError
from rlhf_weights import Path, Place, can_meet, same_memory

Choice = Literal["auto", "store", "memory", "collective"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route from one rank to all processes of an engine."""

    rank: int
    path: Path
    machine: str
    """Machine of the rank."""


def wants_direct(choice: Choice, ranks: Sequence[Place]) -> bool:
    """Return False if all weights go by the object store, which is the default for a policy without GPUs.

    Args:
        choice: value of the option ``runtime.ray.weights``.
        ranks: places of the policy's ranks.
    """
    return choice != "store" and (choice != "auto" or ranks[0].device is not None)


def route_to(
    receivers: Sequence[Place], ranks: Sequence[Place], choice: Choice, who: str
) -> Route | None:
    """Return the route to an engine; None if the engine gets its weights by the object store.

    An engine that shares a device with a rank gets the weights from this rank. An engine on another device gets them by
    a broadcast of the first rank.

    Args:
        receivers: places of the engine's processes; empty if links cannot reach them.
        ranks: places of the policy's ranks.
        choice: value of the option ``runtime.ray.weights``.
        who: name of the engine in messages.

    Raises:
        ConfigError: the chosen kind of route does not lead to this engine.
    """
    if choice == "store" or not receivers:
        return None
    if choice in ("auto", "memory"):
        near = [rank for rank, place in enumerate(ranks) if same_memory(place, receivers)]
        if near:
            return Route(rank=near[0], path="memory", machine=ranks[near[0]].machine)
    if choice in ("auto", "collective") and can_meet(ranks[0], receivers):
        return Route(rank=0, path="collective", machine=ranks[0].machine)
    if choice == "auto":
        return None
    need = {
        "memory": "a rank of the policy on the same GPU, or, without GPUs, on the same machine, in one container",
        "collective": "each of its processes and the policy's first rank on a GPU of its own, or none of them on one",
    }
    raise ConfigError(
        f"runtime.ray.weights is {choice!r}, which needs {need[choice]}; {who} is on "
        f"{', '.join(_called(place, ranks[0]) for place in receivers)}, the policy on "
        f"{', '.join(_called(place, ranks[0]) for place in ranks)}. Leave it at 'auto', or place them otherwise.",
        code="weights/no-route",
    )


def _called(place: Place, first: Place) -> str:
    device = "a CPU" if place.device is None else f"GPU {place.device}"
    return device if place.machine == first.machine else f"{device} of another machine or container"

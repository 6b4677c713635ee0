"""Which way weights take to an engine. Pure functions of where its processes and the ranks are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_core import ConfigError
from rlhf_core.weights import Path, Place, can_meet, same_memory

Choice = Literal["auto", "store", "memory", "collective"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """From a rank to all processes of an engine."""

    rank: int
    path: Path
    machine: str
    """The rank's."""


def wants_direct(choice: Choice, ranks: Sequence[Place]) -> bool:
    """True unless all weights go by the object store: by default they do where the policy has no GPU."""
    return choice != "store" and (choice != "auto" or ranks[0].device is not None)


def route_to(
    receivers: Sequence[Place], ranks: Sequence[Place], choice: Choice, who: str
) -> Route | None:
    """Return the way to an engine; None: by the object store.

    The rank that shares the engine's device gives it the weights; to another device they go by a broadcast of the first
    rank.

    Args:
        receivers: the engine's processes; empty if they cannot be reached.
        who: the engine, in messages.

    Raises:
        ConfigError: the chosen way does not lead there.
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
        f"{', '.join(_called(place, ranks[0]) for place in ranks)}. Leave it at 'auto', or place them otherwise."
    )


def _called(place: Place, first: Place) -> str:
    device = "a CPU" if place.device is None else f"GPU {place.device}"
    return device if place.machine == first.machine else f"{device} of another machine or container"

"""The contract of engines whose processes are the receiving ends of a link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from rlhf_core.contracts import Engine, EngineSpec

from .link import Invitation
from .places import Place


@runtime_checkable
class LinkedEngine(Engine, Protocol):
    """An engine whose own processes take weights straight from a trainer's. An engine without these calls gets its
    weights through the process that it lives in."""

    async def start_empty(self, spec: EngineSpec) -> None:
        """Get ready to serve, without weights; called instead of ``start``."""

    async def receivers(self) -> Sequence[Place]:
        """Return the places of the engine's processes, each of which wants all weights; empty if no link can reach
        them."""

    async def join(self, invitation: Invitation) -> None:
        """Have the engine's processes join a link, which replaces an older one.

        Raises:
            RolloutError: the other ends did not come.
        """

    async def receive_weights(self, version: int) -> None:
        """Serve ``version`` from now on, as ``update_weights`` does, with the weights that come by the link.

        Raises:
            RolloutError: the link broke, or the weights do not fit.
        """

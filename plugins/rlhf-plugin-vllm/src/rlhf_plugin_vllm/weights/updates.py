"""Protocol of updates, by which the engine need not know whether all weights come or an adapter's factors."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from rlhf_core.contracts import WeightSource

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest


class Updates(Protocol):
    """One kind of update: of all weights, or of an adapter beside them."""

    @property
    def changes_running(self) -> bool:
        """True when an update changes the weights that requests in flight are computed with."""

    async def send(self, source: WeightSource) -> int:
        """Hand over what ``source`` yields, and return its number of bytes."""

    async def receive(self, version: int) -> None:
        """Have the workers read ``version`` from the link that they joined."""

    async def served(self) -> list[Any]:
        """Return, for each worker, the fields of ``HeldWeight`` of what new requests are computed with."""

    def for_request(self) -> AbstractContextManager[LoRARequest | None]:
        """Return a context that gives the adapter of one request, which may use it while the context is open."""

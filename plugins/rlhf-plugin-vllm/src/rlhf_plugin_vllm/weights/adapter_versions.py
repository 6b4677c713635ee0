"""Updates of an adapter's factors. Each update is a new adapter to vLLM, which serves it beside older versions.

vLLM's protocol of weight updates is not used for factors, because its end drops every adapter of the workers. vLLM's
public way to load an adapter reads files, and a load in place would keep the name under which the prefix cache has the
keys and values of older factors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

from rlhf_core.contracts import WeightSource

from .sender import Hand, WeightSender
from .workers import Workers

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest


class AdapterVersions:
    """Implements ``Updates``: new requests get the newest version of the adapter.

    A request keeps the version with which it began. When an update comes, the workers drop the versions that no request
    uses, except for the newest one, which stays until the next one has come.

    Args:
        base_is_packed: the trainer holds the base in 4 bits, so what the workers unpacked is compared too.
    """

    changes_running = False

    def __init__(
        self, workers: Workers, sender: WeightSender, *, base_is_packed: bool = False
    ) -> None:
        self._workers = workers
        self._sender = sender
        self._base_is_packed = base_is_packed
        self._base: list[Any] = []
        """For each worker, the fields of ``HeldWeight`` for each weight of a base in 4 bits, once they were read."""
        self._numbers = count(1)
        self._newest = 0
        self._num_requests: Counter[int] = Counter()
        """Number of requests in flight with each version, by the version's number among the updates."""

    async def send(self, source: WeightSource) -> int:
        """Hand over the factors of ``source`` as a new version, and return their number of bytes."""
        async with self._new_version() as hand:
            return await self._sender.send(source, hand)

    async def receive(self, version: int) -> None:
        """Have the workers read a new version from the link that they joined."""
        async with self._new_version() as hand:
            await hand({"version": version})

    async def served(self) -> list[Any]:
        """Return, for each worker, the fields of ``HeldWeight`` for each factor of the newest version, and for each
        weight of a base in 4 bits. The base never changes, so it is read once."""
        factors = await self._workers.ask("rlhf_served_adapter", self._newest)
        if not self._base_is_packed:
            return factors
        if not self._base:
            self._base = await self._workers.ask("rlhf_served_base")
        return [own + base for own, base in zip(factors, self._base, strict=True)]

    @contextmanager
    def for_request(self) -> Iterator[LoRARequest]:
        """Give the newest version for one request, which the workers keep while the context is open."""
        number = self._newest
        self._num_requests[number] += 1
        try:
            yield lora_request(number)
        finally:
            self._num_requests[number] -= 1

    @asynccontextmanager
    async def _new_version(self) -> AsyncIterator[Hand]:
        async def hand(update: dict[str, Any]) -> None:
            await self._workers.ask("rlhf_take_factors", update)

        number = next(self._numbers)
        self._num_requests = +self._num_requests  # without versions that have no requests any more
        await self._workers.ask("rlhf_begin_adapter", number, [self._newest, *self._num_requests])
        yield hand
        await self._workers.ask("rlhf_finish_adapter")
        self._newest = number


def lora_request(number: int) -> LoRARequest:
    """Return vLLM's request for one version.

    The prefix cache tells adapters apart by name and path (vLLM 0.32) or by name (0.26), and the workers by number, so
    all three are new for each version. No file has this path.
    """
    from vllm.lora.request import LoRARequest

    return LoRARequest(
        lora_name=f"rlhf-{number}", lora_int_id=number, lora_path=f"/rlhf/adapter/{number}"
    )

"""Updates of all of the model's weights, which the workers copy into the model that vLLM computes with."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any

from rlhf_core import RolloutError
from rlhf_core.contracts import WeightSource

from .sender import Hand, WeightSender
from .workers import Workers

log = logging.getLogger(__name__)


class ModelUpdates:
    """Implements ``Updates`` by vLLM's own protocol of weight updates."""

    changes_running = True

    def __init__(self, workers: Workers, sender: WeightSender) -> None:
        self._workers = workers
        self._sender = sender
        self._said = False

    async def send(self, source: WeightSource) -> int:
        """Hand over the weights of ``source``, and return their number of bytes.

        Raises:
            RolloutError: a parameter kept its old weights.
        """
        async with self._open_update() as hand:
            num_bytes = await self._sender.send(source, hand)
        await self._check_places()
        return num_bytes

    async def receive(self, version: int) -> None:
        """Have the workers read the weights from the link that they joined.

        Raises:
            RolloutError: a parameter kept its old weights.
        """
        async with self._open_update() as hand:
            await hand({"version": version})
        await self._check_places()

    async def served(self) -> list[Any]:
        """Return, for each worker, the fields of ``HeldWeight`` for each weight of which it holds a part."""
        return await self._workers.ask("rlhf_served")

    def for_request(self) -> AbstractContextManager[None]:
        """Return a context that gives no adapter."""
        return nullcontext()

    async def _check_places(self) -> None:
        """Refuse an update after which a parameter has its old weights, and tell once which weights vLLM leaves out."""
        answers = await self._workers.ask("rlhf_missing")
        missing = sorted({name for names in answers for name in names})
        if missing:
            raise RolloutError(
                f"the trainer sent nothing for {missing[0]} ({len(missing)} parameters kept their old weights); "
                "trainer and engine were started from different models",
                code="engine/other-weights",
            )
        if not self._said:
            self._said = True
            answers = await self._workers.ask("rlhf_unread")
            if unread := sorted({name for names in answers for name in names}):
                log.info(
                    "vLLM leaves out %d weights behind the layer of the tower that is read, the first of them %s",
                    len(unread),
                    unread[0],
                )

    @asynccontextmanager
    async def _open_update(self) -> AsyncIterator[Hand]:
        """Start and finish a weight update of vLLM's protocol, and yield the function that hands over weights."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        llm, answer, is_open = self._workers.llm, self._workers.answer, True

        async def hand(update: dict[str, Any]) -> None:
            nonlocal is_open
            is_open = False  # if a worker fails, vLLM ends the update by itself
            await answer(llm.update_weights(WeightTransferUpdateRequest(update_info=update)))
            is_open = True

        await answer(llm.start_weight_update())
        try:
            yield hand
        finally:
            if is_open:
                await answer(llm.finish_weight_update())

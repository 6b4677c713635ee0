"""Calls from the engine's process to vLLM's workers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


class Workers:
    """All workers of one engine; a call reaches each of them.

    Args:
        llm: vLLM's client of the processes that hold the workers.
    """

    def __init__(self, llm: AsyncLLM) -> None:
        self.llm = llm

    async def ask(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of ``WorkerExtension`` in each worker, and return the workers' answers.

        Args:
            arguments: plain values: numbers, strings, bytes, lists and dictionaries.
        """
        answers: list[Any] = await self.llm.collective_rpc(method, args=arguments)
        return answers

    async def init_transfer(self, how: dict[str, Any]) -> None:
        """Prepare the workers' ``WeightReceiver`` for a way of weights: the fields of its ``InitInfo``."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        await self.llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=how))


def reason(error: Exception) -> str:
    """Return the message of a worker's error, without the text that vLLM puts around it."""
    said = str(error) or type(error).__name__
    inner = re.search(r"Worker failed with error '(.*)', please check", said, re.DOTALL)
    return inner[1] if inner else said

"""Calls from the engine's process to vLLM's workers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

from rlhf_core import RolloutError

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

Answer = TypeVar("Answer")
LOOK_S = 1.0
"""Seconds between two looks whether vLLM's core lives, while it has not answered a call."""


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
        answers: list[Any] = await self.answer(self.llm.collective_rpc(method, args=arguments))
        return answers

    async def answer(self, call: Awaitable[Answer]) -> Answer:
        """Return the answer of a call to vLLM's core. vLLM itself would wait forever for a core that has died.

        Raises:
            RolloutError: the core died before it answered.
        """
        task = asyncio.ensure_future(call)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=LOOK_S)
                if self.llm.errored and not task.done():
                    raise RolloutError("vLLM's core died before it answered", code="vllm/died")
            return task.result()
        finally:
            task.cancel()

    async def init_transfer(self, how: dict[str, Any]) -> None:
        """Prepare the workers' ``WeightReceiver`` for a way of weights: the fields of its ``InitInfo``."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        request = WeightTransferInitRequest(init_info=how)
        await self.answer(self.llm.init_weight_transfer_engine(request))


def worker_failed(call: str, error: Exception) -> RolloutError:
    """Return the error of a call that a worker failed, without the text that vLLM puts around it."""
    said = str(error) or type(error).__name__
    inner = re.search(r"Worker failed with error '(.*)', please check", said, re.DOTALL)
    problem = f"{call}: {inner[1] if inner else said}"
    if isinstance(error, RolloutError):
        return RolloutError(problem, code=error.code)
    return RolloutError(problem, code="vllm/worker-failed")

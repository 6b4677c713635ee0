"""The thread and the stream in which the engine computes: the event loop's and the trainer's, or its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

STREAM_PRIORITY = -1
"""Priority of the engine's stream; -1: its kernels start before those of training that wait as well, 0: both wait
alike. A token has hundreds of small kernels, each of which would wait for a large one."""


class EventLoopLane:
    """The thread of the event loop and the trainer's stream.

    A call blocks the event loop, for one token on a CPU. Where roles compute in a thread of their own
    (``RuntimeSpec.overlaps``), the run holds generation before they do.
    """

    async def call(self, function: Callable[[], Result]) -> Result:
        """Return what ``function`` returns, computed in this lane."""
        return function()

    def entered(self) -> AbstractContextManager[None]:
        """Return a context whose kernels are queued behind those of calls before; none is under way."""
        return nullcontext()

    def taking_over(self) -> AbstractContextManager[None]:
        """Return a context in which the trainer's tensors may be read; nobody is training."""
        return nullcontext()

    def close(self) -> None:
        """Return when no call is under way."""


class ThreadLane(EventLoopLane):
    """A thread of the engine's own, and the trainer's stream.

    A call is a burst of many tokens. The answer of a reward or an environment takes several turns of the event loop,
    and would wait for a burst at each of them.
    """

    def __init__(self, device: torch.device) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._device = device

    async def call(self, function: Callable[[], Result]) -> Result:
        """Return what ``function`` returns, computed in the thread; the event loop goes on meanwhile."""

        def compute() -> Result:
            with self.entered():
                return function()

        return await asyncio.get_running_loop().run_in_executor(self._thread, compute)

    def entered(self) -> AbstractContextManager[None]:
        """Return a context whose kernels are queued on the engine's device: each thread begins with the first one."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()

    def close(self) -> None:
        """End the thread after the call that is under way."""
        self._thread.shutdown(cancel_futures=True)


class OwnLane(ThreadLane):
    """A thread and, on a GPU, a stream of the engine's own.

    All memory of the engine is allocated for this stream, which alone reads and writes it. So the only tensors that
    cross are the trainer's weights, in ``taking_over``.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream = (
            torch.cuda.Stream(device, priority=STREAM_PRIORITY) if device.type == "cuda" else None
        )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Queue kernels of the calling thread on the engine's stream."""
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            yield

    @contextmanager
    def taking_over(self) -> Iterator[None]:
        """Queue kernels on the engine's stream behind all of the trainer's, and the trainer's next ones behind them."""
        with self.entered():
            if self._stream is None:
                yield
                return
            trainers = torch.cuda.default_stream(self._device)
            self._stream.wait_stream(trainers)
            try:
                yield
            finally:
                trainers.wait_stream(self._stream)


def lane_of(device: torch.device, *, beside: bool) -> EventLoopLane:
    """Return the lane of an engine.

    Args:
        beside: whether it generates while the trainer of the process computes.
    """
    if beside:
        return OwnLane(device)
    return ThreadLane(device) if device.type == "cuda" else EventLoopLane()


def driving(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task for which nobody waits. An interrupt in it leaves the event loop by itself, so that the task's own
    copy is no exception that was forgotten, whose traceback asyncio would print behind the end of the run."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(_take_interrupt)
    return task


def _take_interrupt(task: asyncio.Task[None]) -> None:
    # Reading an exception marks it as taken, so any but an interrupt is handed on here.
    if not task.cancelled() and isinstance(task.exception(), Exception):
        task.get_loop().call_exception_handler(
            {"message": "the engine's work failed", "exception": task.exception(), "task": task}
        )

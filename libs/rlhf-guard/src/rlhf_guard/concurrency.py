"""Coroutines that are run to their end: none outlives the call, and none ends the process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from rlhf_core.errors import PluginError
from rlhf_core.problem import problem_of

ResultT = TypeVar("ResultT")


async def all_at_once(work: Iterable[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """Run coroutines at the same time and return their results in order.

    After the first error the others are cancelled and awaited, and that error is raised.
    """
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def run_to_its_end(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine on an event loop of its own, as ``asyncio.run`` does, and return its result.

    Raises:
        PluginError: code on the loop, be it a task that nobody awaits, called ``sys.exit``. All other tasks have been
            cancelled and awaited. asyncio would end the process, with whatever exit code the call was given: 0 for a
            run that failed.
    """
    with asyncio.Runner() as runner:
        try:
            return runner.run(work)
        except SystemExit as error:
            problem = problem_of(error)
            lines = "".join(f"\n    {line}" for line in problem.where)
            text = f"code of the run {problem.text}, which would have ended the process{lines}"
            _cancel_all(runner.get_loop(), text)
            raise PluginError(text, code="run/exited") from error


def _cancel_all(loop: asyncio.AbstractEventLoop, reason: str) -> None:
    """Cancel all tasks and run the loop until they have ended, those by ``sys.exit`` too, of which nothing is told."""
    loop.set_exception_handler(_tell_but_exits)
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.add_done_callback(lambda _: loop.stop())
        task.cancel(reason)
    while not all(task.done() for task in tasks):
        with suppress(SystemExit):
            loop.run_forever()


def _tell_but_exits(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), SystemExit):
        loop.default_exception_handler(context)

"""The reward ``function``, which calls a function in a user's file.

The names of the function's parameters decide which arguments it gets. For one sample:

    def score(prompt, response, row, uid, turns, token_ids, action_mask, truncated, media, request): ...

Any other name is a column of the data row (``def score(response, answer)``). ``**extra`` gets all fields and columns
that no parameter names. A parameter with a default keeps it if the row has no such column. With a parameter called
``prompts``, ``responses``, ``rows``, ``uids`` or ``requests`` (or with ``batch = true``) the function is called once
for many samples, and every argument is a list. The function may be async. It returns a number per sample, or a dict
``{"reward": number, "any_metric": number}``. With ``"step_rewards": [(action, number), ...]`` in the dict the reward is
their sum, which need not be given, and stands on these action tokens (option ``step_rewards``).
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rlhf_core import PluginError, RewardError
from rlhf_core.code_reference import parse
from rlhf_core.contracts import Reward, RewardRequest, RewardResult

from .binding import NO_FUNCTION, Binding, no_function
from .config import FunctionConfig

LEAST_ALONE_S = 1.0
"""Seconds for calls of one sample after a batch that took less."""


def make_function_reward(
    config: FunctionConfig, *, code: Callable[..., Any] | None = None
) -> Reward:
    """Import the function, and return it as a reward. A class with a method ``score`` is used as a reward itself.

    Args:
        code: the function itself, if a Python program gave it; None: it is in the file that the options name.

    Raises:
        ConfigError: there is no such file or name, or the file cannot be imported.
        PluginError: the named object cannot be called, or is a generator.
    """
    loaded = _loaded(config) if code is None else code
    if hasattr(loaded, "score"):
        reward: Reward = loaded
        return reward
    if not callable(loaded):
        raise PluginError(
            no_function(config.path, f"of type {type(loaded).__name__}"),
            code=NO_FUNCTION,
        )
    if inspect.isgeneratorfunction(loaded) or inspect.isasyncgenfunction(loaded):
        raise PluginError(
            f"{config.path} is a generator; return the score instead of yielding it",
            code="reward/generator",
        )
    binding = Binding.of(loaded, config.path, config.batch)
    if binding.batch:
        return BatchFunctionReward(loaded, binding)
    return FunctionReward(loaded, binding, config.concurrency)


def _loaded(config: FunctionConfig) -> Any:
    """Return what the options name in a file; of a class an instance."""
    reference = parse(config.path)
    loaded = reference.load()
    return reference(config) if isinstance(loaded, type) else loaded


class FunctionReward:
    """Calls a function once per sample. An exception concerns its own sample only.

    Args:
        concurrency: largest number of calls of an async function in flight at once.
    """

    def __init__(self, function: Callable[..., Any], binding: Binding, concurrency: int) -> None:
        self._function = function
        self._binding = binding
        self._concurrency = concurrency

    async def score(self, requests: Sequence[RewardRequest]) -> Sequence[RewardResult]:
        """Return a result per sample; for a sample that failed, its exception."""
        results: list[Any] = [self._start(request) for request in requests]
        waiting = [index for index, result in enumerate(results) if inspect.isawaitable(result)]
        slots = asyncio.Semaphore(self._concurrency)
        finished = await asyncio.gather(*(_finish(results[index], slots) for index in waiting))
        for index, result in zip(waiting, finished, strict=True):
            results[index] = result
        return [_result(result) for result in results]

    def _start(self, request: RewardRequest) -> Any:
        try:
            return self._function(**self._binding.arguments(request))
        except (Exception, SystemExit) as error:
            return error


class BatchFunctionReward:
    """Calls a function once per batch, with lists."""

    def __init__(self, function: Callable[..., Any], binding: Binding) -> None:
        self._function = function
        self._binding = binding

    async def score(self, requests: Sequence[RewardRequest]) -> Sequence[RewardResult]:
        """Return a result per sample.

        Where the function does not return one value per sample, it is asked for one at a time, and a first sample for
        which it fails alone ends that: the error is then raised, after which a run scores samples one by one. If it
        fails for none, or the time is over before, the function and no sample is to blame, and all have the error:
        scores that it gives to samples alone may be others than it would give them together.

        Raises:
            RewardError: the function returned another number of values, and fails for one of the samples alone.
        """
        started = time.monotonic()
        returned = self._function(**self._binding.lists(requests))
        given = await returned if inspect.isawaitable(returned) else returned
        values = self._values(given, len(requests))
        if not isinstance(values, RewardError):
            return [_result(value) for value in values]
        # As much time again: were the process killed for all of its time, a run would score one by one.
        limit_s = max(LEAST_ALONE_S, time.monotonic() - started)
        if len(requests) > 1 and await self._fails_alone(requests, limit_s):
            raise values
        failed: list[Any] = [values] * len(requests)
        return failed

    async def _fails_alone(self, requests: Sequence[RewardRequest], limit_s: float) -> bool:
        """Return whether the function was seen to fail for a sample alone, in so many seconds.

        Calls of an async function are in flight at once; after a call of another one the time is looked at.
        """
        end = time.monotonic() + limit_s
        slots = asyncio.Semaphore(len(requests))
        waiting: list[asyncio.Future[Any]] = []
        try:
            for request in requests:
                if time.monotonic() >= end:
                    return False
                returned = self._function(**self._binding.lists([request]))
                if inspect.isawaitable(returned):
                    waiting.append(asyncio.ensure_future(_finish(returned, slots)))
                elif isinstance(self._values(returned, 1), RewardError):
                    return True
            left_s = max(0.0, end - time.monotonic())
            finished = asyncio.as_completed(waiting, timeout=left_s)
            with suppress(TimeoutError):  # of the limit: _finish returns those of the function
                for one in finished:
                    if isinstance(self._values(await one, 1), RewardError):
                        return True
            return False
        finally:
            for call in waiting:
                call.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def _values(self, returned: Any, count: int) -> Sequence[Any] | RewardError:
        """Return the values of ``count`` samples, or the error that they are no list of that many."""
        values = returned
        if hasattr(values, "tolist") and getattr(values, "ndim", 0) == 1:
            values = values.tolist()
        if not isinstance(values, Sequence) or isinstance(values, str):
            got = f"a {type(values).__name__}"
        elif len(values) != count:
            got = f"{len(values)} values for {count} responses"
        else:
            return values
        return RewardError(
            f"{self._binding.written} returned {got}; expected a list of {count} numbers or dicts, one for each "
            "response, in their order",
            code="reward/wrong-answer",
        )


async def _finish(started: Awaitable[Any], slots: asyncio.Semaphore) -> Any:
    async with slots:
        try:
            return await started
        except (Exception, SystemExit) as error:
            return error


def _result(value: Any) -> Any:
    """Return a function's value as a ``RewardResult``, whose number the core checks. Exceptions stay as they are."""
    if isinstance(value, BaseException | RewardResult):
        return value
    if not isinstance(value, Mapping):
        return RewardResult(reward=value)
    metrics = {key: entry for key, entry in value.items() if key not in ("reward", "step_rewards")}
    parts = value.get("step_rewards") or ()
    if "reward" in value:
        return RewardResult(reward=value["reward"], metrics=metrics, step_rewards=parts)
    if parts:
        try:
            return RewardResult.at_steps(parts, metrics)
        except (TypeError, ValueError) as error:
            return RewardError(
                f"step_rewards of the wrong form ({error}); expected pairs of an action's index and a number",
                code="reward/wrong-answer",
            )
    found = ", ".join(map(str, value)) or "nothing"
    return RewardError(
        f"the dict that the function returned has no 'reward', only {found}",
        code="reward/wrong-answer",
    )

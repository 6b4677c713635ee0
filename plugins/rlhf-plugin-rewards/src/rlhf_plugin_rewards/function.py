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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rlhf_core import PluginError, RewardError
from rlhf_core.code_reference import parse
from rlhf_core.contracts import Reward, RewardRequest, RewardResult

from .binding import Binding
from .config import FunctionConfig


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
            f"{config.path} is a {type(loaded).__name__}; expected a function that returns a number",
            code="reward/malformed-function",
        )
    if inspect.isgeneratorfunction(loaded) or inspect.isasyncgenfunction(loaded):
        raise PluginError(
            f"{config.path} is a generator; return the score instead of yielding it",
            code="reward/malformed-function",
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

        Raises:
            RewardError: the function did not return one value per sample.
        """
        binding = self._binding
        returned = self._function(**binding.lists(requests))
        values = await returned if inspect.isawaitable(returned) else returned
        if hasattr(values, "tolist") and getattr(values, "ndim", 0) == 1:
            values = values.tolist()
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise RewardError(
                f"{binding.written} returned a {type(values).__name__}; expected a list of {len(requests)} numbers "
                "or dicts, one for each response",
                code="reward/wrong-answer",
            )
        if len(values) != len(requests):
            raise RewardError(
                f"{binding.written} returned {len(values)} values for {len(requests)} responses",
                code="reward/wrong-answer",
            )
        return [_result(value) for value in values]


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

"""Environments of verifiers up to 0.3.1: ``load_environment``, a dataset, a rollout that asks a client, a rubric.

The rollout and the rubric are the library's own; the client asks the policy. The rubric's weighted sum is the reward
of the last turn, and each of its functions is a metric.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import verifiers.legacy as vf
from verifiers.legacy.clients import Client
from verifiers.legacy.types import AssistantMessage, Response, ResponseMessage, ToolCall
from verifiers.legacy.utils.env_utils import load_environment

from rlhf_core import ConfigError, RolloutError
from rlhf_core.contracts import Action, Observation, StepResult, Stop, Task
from rlhf_data import rows_as_written

from .config import VerifiersV0Config
from .handover import Ask, Handover, plain
from .origin import origin_of
from .titled import titled


class VerifiersV0Bridge:
    """One rollout.

    Raises:
        ConfigError: the environment cannot be made.
    """

    def __init__(self, config: VerifiersV0Config) -> None:
        self._environment = _loaded(config.id, json.dumps(config.kwargs, sort_keys=True))
        self._title = f"{config.id} ({origin_of(config.id)})"
        self._handover: Handover[Any] | None = None
        self._turns = 0

    def tasks(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the environment's dataset, ``train`` or ``eval``.

        Raises:
            KeyError: there is no such split.
        """
        return Inputs(_dataset(self._environment, split), split)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin the rollout of the task's row, or of one by the seed."""
        row = task.row.get("input")
        if row is None:
            rows = _dataset(self._environment, "train")
            row = rows[seed % len(rows)]
        given = dict(row)

        async def run(ask: Ask) -> Any:
            with titled(self._title):
                return await self._scored(given, ask)

        self._handover = Handover(run)
        messages = await self._handover.question()
        if messages is None:
            raise RolloutError(
                f"{self._title} ended before it asked the policy", code="environment/ended-early"
            )
        tools = tuple(map(_tool, given.get("tool_defs") or self._environment.tool_defs or ()))
        return Observation(messages=tuple(messages), tools=tools)

    async def step(self, action: Action) -> StepResult:
        """Give the rollout the policy's answer, and return what it asks next, or its reward."""
        assert self._handover is not None
        self._turns += 1
        self._handover.answer(action)
        messages = await self._handover.question()
        if messages is not None:
            return StepResult(
                observation=Observation(messages=tuple(messages)),
                metrics={"turns": float(self._turns)},
            )
        state = self._handover.outcome
        assert state is not None
        return StepResult(
            rewards={"rubric": float(state["reward"])},
            done=True,
            metrics={name: float(value) for name, value in (state["metrics"] or {}).items()}
            | {"turns": float(self._turns)},
        )

    async def close(self) -> None:
        """Cancel the rollout where it has not ended."""
        if self._handover is not None:
            await self._handover.close()

    async def _scored(self, given: dict[str, Any], ask: Ask) -> Any:
        """Return the state of a rollout, with its rewards."""
        state = await self._environment.rollout(given, _Policy(ask), "policy", {})
        if state.get("error") is not None:
            raise state["error"]
        await self._environment.rubric.score_rollout(state)
        await self._environment.rubric.cleanup(state)
        return state


class Inputs(Sequence[Mapping[str, Any]]):
    """Rows of a dataset as tasks."""

    def __init__(self, dataset: Any, split: str) -> None:
        self._dataset = dataset
        self._split = split

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return {"key": f"{self._split}-{index}", "input": self._dataset[index]}


class _Policy(Client):  # type: ignore[misc]
    """The client of a rollout. Only ``get_response`` is called; the rest talks to providers."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def get_response(self, prompt: Any, *args: Any, **kwargs: Any) -> Response:
        if isinstance(prompt, str):
            raise RolloutError(
                "the environment completes text; expected one with chat messages",
                code="environment/unsuitable",
            )
        action = await self._ask([plain(message) for message in prompt])
        calls = [
            ToolCall(id=call.id or f"call_{number}", name=call.name, arguments=call.arguments)
            for number, call in enumerate(action.tool_calls)
        ]
        cut = action.stop is Stop.LENGTH
        message = AssistantMessage(
            content=action.text if action.content is None else action.content,
            reasoning_content=action.reasoning or None,
            tool_calls=calls or None,
        )
        return Response(
            id=f"turn-{action.turn}",
            created=int(time.time()),
            model="policy",
            message=ResponseMessage(
                **message.model_dump(exclude_none=True),
                finish_reason="length" if cut else "tool_calls" if calls else "stop",
                is_truncated=cut,
            ),
        )

    # The six below talk to a provider: the base class's get_response calls them, which this class replaces. The base
    # class demands them, and nothing calls them.

    def setup_client(self, config: Any) -> Any:
        raise NotImplementedError

    async def to_native_tool(self, tool: Any) -> Any:
        raise NotImplementedError

    async def to_native_prompt(self, messages: Any) -> Any:
        raise NotImplementedError

    async def get_native_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def raise_from_native_response(self, response: Any) -> None:
        raise NotImplementedError

    async def from_native_response(self, response: Any) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        """Do nothing, since nothing is open."""


@cache
def _loaded(name: str, arguments: str) -> Any:
    """Return the environment of a process; its rollouts keep their state apart, as the library has it."""
    module, _, attribute = name.partition(":")
    try:
        if attribute:
            made = getattr(importlib.import_module(module), attribute)(**json.loads(arguments))
        else:
            made = load_environment(name, **json.loads(arguments))
    except (
        Exception
    ) as error:  # Environments raise anything where data, keys or packages are missing.
        raise ConfigError(
            f"expected an environment of verifiers in id, and its arguments in kwargs; {name!r} gave "
            f"{type(error).__name__}: {error}",
            code="environment/not-loadable",
        ) from error
    if not isinstance(made, vf.Environment):
        raise ConfigError(
            f"{name!r} made a {type(made).__name__}; expected an environment of verifiers",
            code="environment/not-loadable",
        )
    return made


def _dataset(environment: Any, split: str) -> Any:
    if split not in ("train", "eval"):
        raise KeyError(split)
    try:
        if split == "train":
            return rows_as_written(environment.get_dataset())
        environment.build_eval_dataset()
        if environment.eval_dataset is None:
            # verifiers would evaluate on the rows that it trains on, with a warning in its log.
            raise KeyError(split)
        return rows_as_written(environment.get_eval_dataset())
    except ValueError as error:
        raise KeyError(f"{split} ({error})") from error


def _tool(tool: Any) -> Mapping[str, Any]:
    fields = tool if isinstance(tool, dict) else tool.model_dump()
    function = {key: fields[key] for key in ("name", "description", "parameters") if key in fields}
    return {"type": "function", "function": function}

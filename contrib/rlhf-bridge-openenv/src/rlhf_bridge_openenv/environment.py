"""An environment of OpenEnv as a conversation: each answer of the policy is an action, each observation a message.

Of a server with tools (MCP), the tools are shown in the form of the chat template; an answer without a call ends the
episode, as elsewhere with tools. A session is opened for each episode, and closed with it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rlhf_core import RolloutError
from rlhf_core.contracts import Action, Observation, StepResult, Task

from .actions import ActionForm, MalformedAction, action_form, call_action
from .address import Address
from .config import OpenEnvConfig
from .naming import named
from .observations import Seen, offered_tools, seen_in, shown, tool_result
from .places import OpenEnvPlace
from .served import ServedTasks, split_names
from .session import OpenEnvSession, Refusal, open_session

_FULL = "CAPACITY_REACHED"
_NO_ACTION = "VALIDATION_ERROR"
_EVALUATED = ("validation", "test")
"""Types of splits that stand for ``eval`` where none has that name, the first of them first."""


class OpenEnvBridge:
    """One episode.

    Raises:
        ConfigError: the options name no server, or several.
    """

    def __init__(self, config: OpenEnvConfig) -> None:
        self._config = config
        self._place = OpenEnvPlace(config)
        self._label = "the OpenEnv server"
        self._form: ActionForm | None = None
        self._session: OpenEnvSession | None = None
        self._turns = 0
        self._malformed = 0
        self._earned = 0.0

    def tasks(self, split: str) -> Iterable[Mapping[str, Any]]:
        """Return the server's tasks of a split; of an environment without tasks, rows that differ in their seeds.

        Raises:
            KeyError: there is no such split.
            RolloutError: the server cannot be reached, or says nonsense.
        """
        address, served = self._place.find()
        names = split_names(address, served, self._place.limits)
        if names is None:
            if split != "train":
                raise KeyError(split)
            return _Endless()
        name = self._config.splits.get(split, split)
        if name not in names and split == "eval" and split not in self._config.splits:
            typed = [one for kind in _EVALUATED for one, its in names.items() if its == kind]
            name = typed[0] if typed else name
        if name not in names:
            raise KeyError(f"{name} (the server has {', '.join(names) or 'none'})")
        return ServedTasks(address, served, name, self._place.limits)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Open a session, and begin."""
        address, served = await asyncio.to_thread(self._place.find)
        self._label = served.label
        self._form = action_form(served.action_schema, self._config)
        arguments = {**self._config.reset, **(task.row.get("reset") or {})}
        arguments.setdefault("seed", seed % 2**31)
        with named(self._label):
            seen = await self._begun(address, arguments)
            if seen.done:
                raise RolloutError(
                    "its episode ended before the policy's first turn",
                    code="environment/ended-early",
                )
            tools = await self._tools() if self._form.kind == "tools" else ()
        instructions = self._config.instructions or self._form.explained
        content = "\n".join(filter(None, (instructions, shown(seen.fields, self._config.show))))
        return Observation(messages=({"role": "user", "content": content},), tools=tools)

    async def step(self, action: Action) -> StepResult:
        """Send the answer's action, or its calls of tools one after the other."""
        assert self._form is not None
        self._turns += 1
        with named(self._label):
            if self._form.kind == "tools":
                return await self._called(action)
            text = action.text if action.content is None else action.content
            try:
                seen = await self._sent(self._form.action(text))
            except MalformedAction as error:
                return self._answered(str(error))
            content = shown(seen.fields, self._config.show) if not seen.done else ""
            return self._result(seen.reward, seen.done, ({"role": "user", "content": content},))

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _begun(self, address: Address, arguments: Mapping[str, Any]) -> Seen:
        """Return the answer to reset, of a new session that the server had room for."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._config.capacity_s
        for attempt in itertools.count():
            self._session = await self._opened(address)
            try:
                return seen_in(await self._session.ask("reset", arguments, "observation"), "reset")
            except Refusal as error:
                await self.close()
                if error.code != _FULL or loop.time() >= give_up:
                    raise RolloutError(
                        f"refused to begin an episode ({error})", code="environment/refused"
                    ) from error
            # Episodes that wait for room come back at different times.
            wait_s = min(1.0, 0.05 * 2 ** min(attempt, 5)) * random.uniform(0.5, 1.0)
            await asyncio.sleep(min(wait_s, max(0.0, give_up - loop.time())))
        raise AssertionError("the loop has no end")

    async def _opened(self, address: Address) -> OpenEnvSession:
        """Return a session; with a server that this process started and that died, one with its successor."""
        try:
            return await open_session(address, self._place.limits)
        except RolloutError:
            if not await asyncio.to_thread(self._place.has_died):
                raise
        address, _ = await asyncio.to_thread(self._place.find)
        return await open_session(address, self._place.limits)

    async def _tools(self) -> tuple[Mapping[str, Any], ...]:
        assert self._session is not None
        question = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        try:
            answer = await self._session.ask("mcp", question, "mcp")
        except Refusal as error:
            raise RolloutError(
                f"refused to list its tools ({error})", code="environment/refused"
            ) from error
        return offered_tools(answer.get("result"))

    async def _called(self, action: Action) -> StepResult:
        if action.malformed and not action.tool_calls:
            return self._answered(f"error: {action.malformed[0]}")
        if not action.tool_calls:
            return self._result(0.0, True, ())
        reward, done, messages = 0.0, False, []
        for call in action.tool_calls:
            try:
                seen = await self._sent(call_action(call))
            except MalformedAction as error:
                if self._config.least_reward is not None:
                    self._earned += reward
                    answered = self._answered(str(error))
                    return replace(answered, reward=answered.reward + reward)
                self._malformed += 1
                reward += self._config.malformed_reward
                text = str(error)
            else:
                reward, done, text = reward + seen.reward, seen.done, tool_result(seen.fields)
            messages.append(
                {"role": "tool", "content": text, "tool_call_id": call.id, "name": call.name}
            )
            if done:
                break
        return self._result(reward, done, tuple(messages))

    async def _sent(self, body: Mapping[str, Any]) -> Seen:
        """Return the answer to an action."""
        if self._session is None:
            raise RolloutError("its session has ended", code="environment/closed")
        try:
            return seen_in(await self._session.ask("step", body, "observation"), "step")
        except Refusal as error:
            if error.code == _NO_ACTION or self._config.step_errors == "show":
                raise MalformedAction(f"error: {error.text}") from error
            raise RolloutError(f"failed in a step ({error})", code="environment/refused") from error

    def _answered(self, text: str) -> StepResult:
        self._malformed += 1
        least = self._config.least_reward
        if least is not None:
            return self._result(least - self._earned, True, ())
        return self._result(
            self._config.malformed_reward, False, ({"role": "user", "content": text},)
        )

    def _result(
        self, reward: float, done: bool, messages: tuple[Mapping[str, Any], ...]
    ) -> StepResult:
        self._earned += reward
        return StepResult(
            observation=Observation(messages=() if done else messages),
            reward=reward,
            done=done or self._turns >= self._config.max_turns,
            metrics={"turns": float(self._turns), "malformed": float(self._malformed)},
        )


class _Endless(Iterable[Mapping[str, Any]]):
    """Rows of an environment without tasks: its episodes differ by their seeds."""

    def __iter__(self) -> Any:
        return ({"key": f"train-{number}"} for number in itertools.count())

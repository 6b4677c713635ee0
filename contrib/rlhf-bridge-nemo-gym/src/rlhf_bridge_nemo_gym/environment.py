"""A resources server of NeMo Gym as an environment, in the place of the framework's own agents.

    verify    /seed_session, then the policy's turns with a request for each call of a tool, then /verify for the reward
    step      /reset, then a request for each turn, whose answer is a reward, the next message, and results of calls

The conversation begins with the row's ``responses_create_params``. As with the framework's ``simple_agent``, an answer
without a call ends an episode of the first kind, and an error of a tool's route is what the policy reads.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rlhf_core import ConfigError, RolloutError
from rlhf_core.contracts import (
    Action,
    EnvironmentManifest,
    Observation,
    StepResult,
    Stop,
    Task,
)
from rlhf_core.outside.json_reader import BrokenJson, parse_json

from .client import GymClient
from .config import NemoGymConfig
from .items import Fields, chat_tools, messages_of, output_items, response_of
from .rows import gym_rows

_OWN_ROUTES = {"verify", "seed_session", "reset", "step", "close", "aggregate_metrics", "mcp"}
_MAX_REWARD = 1e30


class NemoGymBridge:
    """One episode.

    Raises:
        ConfigError: the URL is none.
    """

    manifest = EnvironmentManifest(deterministic=False)

    def __init__(self, config: NemoGymConfig) -> None:
        self._config = config
        self._client = GymClient(
            config.url,
            config.label,
            answer_s=config.answer_s,
            max_bytes=int(config.max_answer_mib * 2**20),
        )
        self._row: dict[str, Any] = {}
        self._output: list[Fields] = []
        self._last: Action | None = None
        self._steps = False
        self._info: Fields = {}
        self._done = False

    def tasks(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of the files for a split.

        Raises:
            KeyError: there is no file for it.
            DataError: a row cannot be used.
        """
        files = {"train": self._config.train, "eval": self._config.eval}.get(split, ())
        if not files:
            raise KeyError(split)
        return gym_rows(files, split)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Open a session for the task's row, and return what the conversation begins with."""
        row = task.row.get("gym")
        if not isinstance(row, dict):
            raise RolloutError(
                "the task has no row of NeMo Gym in its column gym; expected tasks of the options train and eval",
                code="environment/no-task",
            )
        self._row = dict(row)
        with self._named():
            params = self._row["responses_create_params"]
            messages = list(messages_of(params["input"]))
            tools = chat_tools(params.get("tools"))
            self._steps = await self._has_steps()
            path = "/reset" if self._steps else "/seed_session"
            answer = (await self._client.post(path, self._row)).fields(path)
            if self._steps:
                self._info = _object(answer, "info")
                messages += _observed(answer)
        return Observation(messages=tuple(messages), tools=tools)

    async def step(self, action: Action) -> StepResult:
        """Take an answer: to the server, or to the routes of the tools that it calls."""
        self._last = action
        items = output_items(action, f"{action.turn}")
        self._output += items
        with self._named():
            if self._steps:
                return await self._stepped(action, items)
            calls = [item for item in items if item["type"] == "function_call"]
            at_end = action.turn + 1 >= self._config.max_steps or action.stop is Stop.LENGTH
            if not calls or at_end:
                return await self._verified(action)
            return StepResult(
                observation=Observation(
                    messages=tuple([await self._called(call) for call in calls])
                )
            )

    async def episode_rewards(self) -> Mapping[str, float]:
        """Return the verifier's reward of an episode that a limit of the run ended."""
        if self._steps or self._done or self._last is None:
            return {}
        with self._named():
            return (await self._verified(self._last)).rewards

    async def close(self) -> None:
        """Close the session where the server wants that, and hang up."""
        if self._info.get("supports_explicit_close") is True:
            # The server ends sessions that nobody closes; the episode's own error counts.
            with suppress(RolloutError):
                await self._client.post("/close", {})
        await self._client.close()

    async def _has_steps(self) -> bool:
        if self._config.protocol != "auto":
            return self._config.protocol == "step"
        paths = _object((await self._client.get("/openapi.json")).fields("/openapi.json"), "paths")
        if "/verify" in paths:
            return False
        if not {"/reset", "/step"} <= set(paths):
            raise ConfigError(
                f"{self._client.label} has neither /verify nor /reset and /step; expected a resources server. An agent "
                "server (/run) is for the executor endpoint",
                code="environment/agent-server",
            )
        return True

    async def _called(self, call: Fields) -> Fields:
        """Return the tool's answer to a call as a message."""
        message = {"role": "tool", "tool_call_id": call["call_id"], "name": call["name"]}
        tools = chat_tools(self._row["responses_create_params"].get("tools"))
        offered = {tool["function"]["name"] for tool in tools} - _OWN_ROUTES
        # The policy chooses the route, so it must not reach one that it was not offered.
        if call["name"] not in offered:
            text = json.dumps({"error": f"no tool {call['name']}"})
        else:
            try:
                arguments = parse_json(call["arguments"] or "{}")
            except BrokenJson as error:
                text = json.dumps({"error": f"Invalid tool call arguments: {error!r:.200}"})
            else:
                text = (await self._client.post(f"/{call['name']}", arguments)).text
        self._output.append(
            {"type": "function_call_output", "call_id": call["call_id"], "output": text}
        )
        return {**message, "content": text}

    async def _verified(self, action: Action) -> StepResult:
        self._done = True
        response = response_of(self._row["responses_create_params"], self._output, action)
        answer = (await self._client.post("/verify", {**self._row, "response": response})).fields(
            "/verify"
        )
        metrics = {
            f"verify/{name}": float(value)
            for name, value in {**answer, **_object(answer, "reward_components")}.items()
            if name != "reward" and name not in self._row and _is_number(value)
        }
        return StepResult(rewards={"verify": _reward(answer)}, done=True, metrics=metrics)

    async def _stepped(self, action: Action, items: Sequence[Fields]) -> StepResult:
        response = response_of(self._row["responses_create_params"], items, action)
        body = {**self._row, "response": response}
        if self._info.get("supports_step_idempotency") is True:
            body["_ng_step_request_id"] = uuid.uuid4().hex
        answer = (await self._client.post("/step", body)).fields("/step")
        info = _object(answer, "info")
        done = answer.get("terminated") is True or answer.get("truncated") is True
        self._done = done
        messages = _tool_messages(info) + _observed(answer)
        metrics = {
            f"info/{name}": float(value) for name, value in info.items() if _is_number(value)
        }
        return StepResult(
            observation=Observation(messages=() if done else tuple(messages)),
            reward=_reward(answer),
            done=done or action.turn + 1 >= self._config.max_steps,
            metrics=metrics,
        )

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except RolloutError as error:
            raise error.with_text(f"{self._client.label}: {error}") from error


def _observed(answer: Fields) -> list[Fields]:
    """Return the user's message of an answer; none if it has no observation."""
    observation = answer.get("observation")
    if observation is not None and not isinstance(observation, str):
        raise RolloutError(
            f"gave the observation {observation!r:.200}; expected a text",
            code="environment/wrong-observation",
        )
    return [{"role": "user", "content": observation}] if observation else []


def _tool_messages(info: Fields) -> list[Fields]:
    found = info.get("tool_outputs", [])
    if not isinstance(found, list) or not all(
        isinstance(one, dict)
        and isinstance(one.get("output"), str)
        and isinstance(one.get("call_id"), str)
        for one in found
    ):
        raise RolloutError(
            f"gave tool_outputs = {found!r:.200}; expected texts with call_id and output",
            code="environment/wrong-answer",
        )
    return [
        {"role": "tool", "tool_call_id": one["call_id"], "content": one["output"]} for one in found
    ]


def _object(answer: Fields, name: str) -> dict[str, Any]:
    found = answer.get(name)
    if found is not None and not isinstance(found, dict):
        raise RolloutError(
            f"gave {name} = {found!r:.200}; expected an object", code="environment/wrong-answer"
        )
    return found or {}


def _reward(answer: Fields) -> float:
    reward = answer.get("reward")
    if not _is_number(reward) or abs(reward) > _MAX_REWARD:  # type: ignore[arg-type]
        raise RolloutError(
            f"gave the reward {reward!r:.200}; expected a finite number",
            code="environment/no-reward",
        )
    return float(reward)  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) < 2**1000
    return isinstance(value, float) and math.isfinite(value)

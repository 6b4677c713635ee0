"""Requests of one episode's harness for completions, as questions to the policy and back.

The harness asks as OpenAI's chat completions ask. Its client reads the answer as text, calls and thoughts, and sends
it back in whatever form it likes; what the policy reads and is trained on are the tokens that it sampled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core import RolloutError
from rlhf_core.contracts import Action, Stop

from .handover import Ask, plain

Tools = tuple[Mapping[str, Any], ...]


class Asking:
    """The questions of one episode.

    Args:
        ask: asks the policy for the answer to a whole conversation.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._requests: set[asyncio.Task[Any]] = set()
        self.tools: Tools | None = None
        """Schemas of the functions that the harness offers; None: it did not ask yet."""
        self.rollouts: dict[str, Any] = {}
        """Rollouts that may ask, as verifiers traces them, by id."""
        self.asked: set[str] = set()
        """Ids of those that did: one, for an episode with one conversation."""
        self.refused: asyncio.Future[RolloutError] = asyncio.get_running_loop().create_future()
        """Set once the harness asked for what cannot be played in turns."""

    async def completion(self, rollout: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the policy's answer as a chat completion.

        Raises:
            RolloutError: the request is no question of one growing conversation of text.
            Stopped: the policy answers no more.
        """
        current = asyncio.current_task()
        assert current is not None
        self._requests.add(current)
        try:
            self.asked.add(rollout)
            self._keep_tools(tuple(request.get("tools") or ()))
            action = await self._ask([plain(message) for message in request["messages"]])
        except RolloutError as error:
            self.refuse(error)
            raise
        finally:
            self._requests.discard(current)
        return completion_of(action)

    def refuse(self, error: RolloutError) -> None:
        """End the episode with an error."""
        if not self.refused.done():
            self.refused.set_result(error)

    def stop(self) -> None:
        """Mark the rollouts as stopped, so that verifiers scores what was played."""
        for rollout in self.rollouts.values():
            rollout.stop("run_limit")

    def close(self) -> None:
        """Let go of the requests that still wait."""
        for request in self._requests:
            request.cancel()

    def _keep_tools(self, tools: Tools) -> None:
        if self.tools is not None and tools != self.tools:
            raise RolloutError(
                "the harness offered other tools than at first; expected the same ones in a whole episode, since the "
                "policy has read them",
                code="environment/tools-changed",
            )
        self.tools = tools


def completion_of(action: Action) -> Mapping[str, Any]:
    """Return an action in the form of OpenAI's chat completions."""
    content = action.text if action.content is None else action.content
    message: dict[str, Any] = {"role": "assistant", "content": _valid(content)}
    if action.reasoning:
        message["reasoning_content"] = _valid(action.reasoning)
    calls = [
        {
            "id": call.id or f"call_{action.turn}_{number}",
            "type": "function",
            "function": {"name": _valid(call.name), "arguments": _valid(call.arguments)},
        }
        for number, call in enumerate(action.tool_calls)
    ]
    if calls:
        message["tool_calls"] = calls
    return {
        "id": f"turn-{action.turn}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": "policy",
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(action, calls)}],
    }


def _finish(action: Action, calls: Sequence[Any]) -> str:
    if action.stop is Stop.LENGTH:
        return "length"
    return "tool_calls" if calls else "stop"


def _valid(text: str) -> str:
    # Half of a surrogate pair is no JSON for the library's parser, which would call the whole answer malformed.
    return text.encode("utf-8", "replace").decode()

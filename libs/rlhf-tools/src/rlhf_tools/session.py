"""The calls of one episode: limits counted, results cut to size, tool messages and metrics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from rlhf_core import first_error
from rlhf_core.contracts import Message, ToolCall

from .limits import ToolLimits
from .results import ToolFailure, ToolResult
from .toolbox import Toolbox

_DEPTH: ContextVar[int] = ContextVar("rlhf_tools_depth", default=0)
"""Number of calls around this one: tools may call tools by the session of their episode."""


_NO_NAME = "none"
"""Name in the message for a call that has none."""


class ToolSession:
    """Counts the calls of one episode, and answers them."""

    def __init__(self, toolbox: Toolbox, limits: ToolLimits | None = None) -> None:
        self._toolbox = toolbox
        self._limits = limits or ToolLimits()
        self._by_tool: Counter[str] = Counter()
        self._failures: Counter[ToolFailure] = Counter()
        self._calls = 0
        self._chars = 0
        self._cut = 0

    async def answer(
        self, calls: Sequence[ToolCall], malformed: Sequence[str] = ()
    ) -> tuple[Message, ...]:
        """Return a tool message for each call of a turn, in the order of the calls.

        Args:
            malformed: reasons of calls that were none; each gets a message after the others, without an id.

        Raises:
            RolloutError: a tool says that the environment failed; calls that run beside it are cancelled.
        """
        limit = self._limits.max_calls_per_turn
        within, beyond = calls[:limit], calls[limit:]
        if self._limits.parallel:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self.call(one)) for one in within]
            except ExceptionGroup as errors:
                raise first_error(errors) from errors
            results = [task.result() for task in tasks]
        else:
            results = [await self.call(one) for one in within]
        refused = f"at most {limit} calls in one turn; this one was not made"
        results += [self._counted(one, _refusal(refused)) for one in beyond]
        refused_calls = [ToolCall(name=_NO_NAME, arguments="") for _ in malformed[:limit]]
        results += [
            self._counted(one, ToolResult.failed(ToolFailure.MALFORMED_CALL, reason))
            for one, reason in zip(refused_calls, malformed, strict=False)
        ]
        return tuple(
            {
                "role": "tool",
                "tool_call_id": call.id,
                "name": call.name,
                "content": _content(result),
            }
            for call, result in zip([*calls, *refused_calls], results, strict=True)
        )

    async def call(self, call: ToolCall) -> ToolResult:
        """Answer one call, of the policy or of a tool that calls another one.

        Raises:
            RolloutError: a tool says that the environment failed.
        """
        depth = _DEPTH.get() + 1
        refused = self._refused(depth)
        if refused is not None:
            return self._counted(call, _refusal(refused))
        self._calls += 1
        token = _DEPTH.set(depth)
        try:
            result = await self._toolbox.call(call, timeout_s=self._limits.timeout_s)
        finally:
            _DEPTH.reset(token)
        return self._counted(call, result)

    def metrics(self) -> dict[str, float]:
        """Return the numbers of the episode so far: calls, by tool as well, and failures, by kind as well."""
        return {
            "tools/calls": float(sum(self._by_tool.values())),
            "tools/errors": float(sum(self._failures.values())),
            "tools/result_chars": float(self._chars),
            "tools/cut_chars": float(self._cut),
            **{
                f"tools/calls/{tool.name}": float(self._by_tool[tool.name])
                for tool in self._toolbox
            },
            **{f"tools/errors/{kind}": float(self._failures[kind]) for kind in ToolFailure},
        }

    def _refused(self, depth: int) -> str | None:
        """Return why another call is refused, or None."""
        limits = self._limits
        if depth > limits.max_depth:
            return f"tools may call tools {limits.max_depth} deep"
        if self._calls >= limits.max_calls:
            return f"all {limits.max_calls} calls of the episode are used up; answer without a call"
        if self._chars >= limits.max_episode_chars:
            return (
                f"results of this episode have {self._chars} characters, of at most {limits.max_episode_chars}; answer "
                "without a call"
            )
        return None

    def _counted(self, call: ToolCall, result: ToolResult) -> ToolResult:
        result = _cut(result, self._limits.max_result_chars)
        self._by_tool[call.name] += 1
        self._chars += len(result.text)
        self._cut += result.cut
        if result.failure is not None:
            self._failures[result.failure] += 1
        return result


def _refusal(message: str) -> ToolResult:
    return ToolResult.failed(ToolFailure.LIMIT, message)


def _cut(result: ToolResult, most: int) -> ToolResult:
    """Return a result of at most ``most`` characters, followed by a note if something was cut off."""
    beyond = len(result.text) - most
    if beyond <= 0:
        return result
    note = f"\n[{beyond} of {len(result.text)} characters cut off]"
    return replace(result, text=result.text[:most] + note, cut=result.cut + beyond)


def _content(result: ToolResult) -> str | list[dict[str, Any]]:
    """Return a message's content: the text alone, or parts if there are images."""
    if not result.images:
        return result.text
    texts = [{"type": "text", "text": result.text}] if result.text else []
    return [*texts, *({"type": "image", "image": image} for image in result.images)]

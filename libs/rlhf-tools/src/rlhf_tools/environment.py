"""A base for environments in which the policy calls tools until it answers without a call.

environment   task, and what the tools are          begin
policy        calls
environment   one tool message for each call
policy        an answer without calls               judge; the episode ends
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from rlhf_core.contracts import Action, Message, Observation, StepResult, Task

from .limits import ToolLimits
from .mcp.server import McpServer
from .mcp.session import McpSession
from .mcp.shared import close_sessions, open_sessions
from .session import ToolSession
from .tool import Tool
from .toolbox import Toolbox


class ToolEnvironment(ABC):
    """One episode with tools. A subclass writes ``begin`` and ``judge``.

    Args:
        tools: tools, functions, methods of the environment itself, or a toolbox that many episodes share.
        limits: limits of the calls; None: the defaults.
        servers: MCP servers, whose tools are offered too. Their sessions are opened by ``reset``.

    Raises:
        PluginError: a function cannot be a tool.
    """

    def __init__(
        self,
        tools: Toolbox | Iterable[Tool | Callable[..., Any]] = (),
        limits: ToolLimits | None = None,
        servers: Sequence[McpServer] = (),
    ) -> None:
        self._toolbox = tools if isinstance(tools, Toolbox) else Toolbox(tools)
        self._limits = limits
        self._servers = tuple(servers)
        self._own_sessions: Sequence[McpSession] = ()
        self.calls = ToolSession(self._toolbox, limits)

    @abstractmethod
    async def begin(self, task: Task, seed: int) -> Sequence[Message]:
        """Start the episode, and return its first messages."""

    @abstractmethod
    async def judge(self, action: Action) -> StepResult:
        """Reward the answer, which has no calls. The result's observation and ``done`` are not read."""

    async def called(self, action: Action, results: Sequence[Message]) -> StepResult:
        """Reward a turn with calls; the result's observation and ``done`` are not read. No reward, unless a subclass
        gives one.

        Args:
            results: the tool messages that the policy reads next.
        """
        return StepResult()

    async def reset(self, task: Task, seed: int) -> Observation:
        """Return the first messages, and the tools.

        Raises:
            RolloutError: an MCP server cannot be reached.
        """
        if self._servers:
            sessions, self._own_sessions = await open_sessions(self._servers)
            found = [tool for session in sessions for tool in session.tools]
            self._toolbox = Toolbox([*self._toolbox, *found])
            self.calls = ToolSession(self._toolbox, self._limits)
        messages = await self.begin(task, seed)
        return Observation(messages=tuple(messages), tools=self._toolbox.schemas)

    async def step(self, action: Action) -> StepResult:
        """Answer the calls of a turn, malformed ones too; a turn without any is judged and ends the episode.

        Raises:
            RolloutError: a tool says that the environment failed.
        """
        if not action.tool_calls and not action.malformed:
            return self._with_metrics(replace(await self.judge(action), done=True))
        messages = await self.calls.answer(action.tool_calls, action.malformed)
        rewarded = await self.called(action, messages)
        return self._with_metrics(
            replace(rewarded, observation=Observation(messages=messages), done=False)
        )

    async def close(self) -> None:
        """Release what the episode holds. A subclass that holds more calls this too."""
        await close_sessions(self._own_sessions)
        self._own_sessions = ()

    def _with_metrics(self, result: StepResult) -> StepResult:
        return replace(result, metrics={**self.calls.metrics(), **result.metrics})

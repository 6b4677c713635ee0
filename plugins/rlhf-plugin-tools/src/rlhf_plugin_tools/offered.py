"""The environment `tools`: a prompt of the data, tools, and an answer, which rewards score (``--reward``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from rlhf_core import ConfigError, RolloutError
from rlhf_core.code_reference import parse
from rlhf_core.contracts import Action, Message, StepResult, Task
from rlhf_tools import Tool, ToolEnvironment
from rlhf_tools.sandbox.python import python_tool
from rlhf_tools.toolbox import Toolbox

from .config import ToolsConfig


class OfferedTools(ToolEnvironment):
    """One episode. It gives no reward of its own; its metrics count calls and errors.

    Raises:
        ConfigError: there is no tool, or a function cannot be loaded.
        PluginError: a function cannot be a tool.
    """

    def __init__(self, config: ToolsConfig) -> None:
        super().__init__(_toolbox(config), config.limits, config.servers())

    async def begin(self, task: Task, seed: int) -> Sequence[Message]:
        """Return the prompt's messages.

        Raises:
            RolloutError: the prompt is no chat.
        """
        if not task.messages:
            raise RolloutError(
                "the environment tools needs prompts as chats, since tools are described by the chat template; this "
                "one is a text. Set --data.chat true, or write prompts as lists of messages",
                code="rollout/no-chat",
            )
        return task.messages

    async def judge(self, action: Action) -> StepResult:
        """Count the answer."""
        return StepResult(metrics={"tools/answered": 1.0})


@lru_cache(maxsize=16)
def _toolbox(config: ToolsConfig) -> Toolbox:
    """Return the tools that episodes share; those of MCP servers come with a session."""
    tools: list[Tool | Callable[..., Any]] = []
    for name in config.functions:
        loaded = parse(name).load()
        tools += loaded if isinstance(loaded, list | tuple) else [loaded]
    if config.sandboxed_python:
        tools.append(python_tool(config.sandbox))
    if not tools and not config.mcp:
        raise ConfigError(
            "the environment tools has no tool. Set --env.tools.sandboxed_python true, or name functions "
            "(FILE.py:NAME) or MCP servers",
            code="tool/none",
        )
    return Toolbox(tools)

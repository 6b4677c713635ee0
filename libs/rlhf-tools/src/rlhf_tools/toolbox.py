"""Tools by name, shared by all episodes of a run, and one call: arguments read, tool run, its answer made a result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

from rlhf_core import PluginError, RolloutError, first_error
from rlhf_core.contracts import ToolCall
from rlhf_core.media import is_pillow

from .bounded import bounded
from .functions import function_tool
from .results import ToolError, ToolFailure, ToolResult
from .tool import Tool

_MAX_MESSAGE = 500
_MAX_LISTED = 20


class Toolbox:
    """Tools of different names.

    Args:
        tools: tools, or functions that ``function_tool`` makes tools of.

    Raises:
        PluginError: two have one name, or a function cannot be a tool.
    """

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]]) -> None:
        self._tools: dict[str, Tool] = {}
        for given in tools:
            tool = given if isinstance(given, Tool) else function_tool(given)
            if tool.name in self._tools:
                raise PluginError(
                    f"two tools are called {tool.name!r}; expected different names. Rename one (function_tool(..., "
                    "name=...), or the prefix of an MCP server)",
                    code="tool/repeated-name",
                )
            self._tools[tool.name] = tool

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """Descriptions of all tools, as ``Observation.tools`` takes them."""
        return tuple(tool.schema for tool in self)

    async def call(self, call: ToolCall, *, timeout_s: float) -> ToolResult:
        """Answer a call of the policy. Whatever it or the tool does wrong is in the result.

        Args:
            timeout_s: deadline of tools that have none of their own.

        Raises:
            RolloutError: a tool says that the environment failed, such as a server that died.
        """
        tool = self._tools.get(call.name)
        if tool is None:
            names = ", ".join(list(self._tools)[:_MAX_LISTED]) or "none"
            return ToolResult.failed(
                ToolFailure.UNKNOWN_TOOL, f"no tool is called {_short(call.name)!r}; tools: {names}"
            )
        try:
            arguments = from_json(call.arguments or "{}", allow_inf_nan=False)
        except ValueError as error:
            return ToolResult.failed(
                ToolFailure.INVALID_JSON, f"the arguments are not JSON: {_short(str(error))}"
            )
        if not isinstance(arguments, dict):
            return ToolResult.failed(
                ToolFailure.INVALID_JSON,
                f"expected the arguments as one JSON object, got {_kind_of(arguments)}",
            )
        return await _run(tool, arguments, tool.timeout_s or timeout_s)


async def _run(tool: Tool, arguments: Mapping[str, Any], timeout_s: float) -> ToolResult:
    """Return a tool's answer as a text, and its exceptions as failures."""
    try:
        if tool.slots is None:
            value = await bounded(_started(tool, arguments), timeout_s, tool.name)
        else:
            async with tool.slots.free():
                value = await bounded(_started(tool, arguments), timeout_s, tool.name)
    except TimeoutError:
        return ToolResult.failed(
            ToolFailure.TIMEOUT, f"{tool.name} did not answer within {timeout_s:g} s"
        )
    if isinstance(value, ToolResult):
        return value
    try:
        return _result(value)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        return ToolResult.failed(
            ToolFailure.INVALID_RESULT, f"{tool.name} returned a value without JSON: {_said(error)}"
        )


async def _started(tool: Tool, arguments: Mapping[str, Any]) -> Any:
    """Return what a tool returns; its own exceptions, a time-out among them, as a failure."""
    try:
        return await tool.run(arguments)
    except Exception as raised:
        error = first_error(raised)  # of a tool that does several things at once
        if isinstance(error, RolloutError):
            raise error from (None if error is raised else raised)
        said = str(error) if isinstance(error, ToolError) else _said(error)
        return ToolResult.failed(ToolFailure.FAILED, said)
    except SystemExit as error:
        return ToolResult.failed(ToolFailure.FAILED, _said(error))
    except asyncio.CancelledError as error:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        return ToolResult.failed(ToolFailure.FAILED, _said(error))


def _result(value: Any) -> ToolResult:
    """Return a value as a result: an image of Pillow, or those of a list, as images, and all else as text.

    No text or object is taken for an image: the policy may have written it, and it would name a file to be read.
    """
    entries = value if isinstance(value, list | tuple) else [value]
    images = tuple(filter(is_pillow, entries))
    if not images:
        return ToolResult(text=_text(value))
    texts = (_text(entry) for entry in entries if not is_pillow(entry))
    return ToolResult(text="\n".join(texts), images=images)


def _text(value: Any) -> str:
    """Return a text as it is, except for halves of surrogate pairs, which no tokenizer takes; else the value's JSON."""
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode("utf-8")
    return to_json(value, inf_nan_mode="constants").decode("utf-8")


def _said(error: BaseException) -> str:
    """Return the type and the first line of the message of an exception: nothing of the code around it."""
    message = _text(str(error)).strip().partition("\n")[0]
    return f"{type(error).__name__}: {_short(message)}" if message else type(error).__name__


def _short(text: str) -> str:
    plain = _text(text)
    return plain if len(plain) <= _MAX_MESSAGE else plain[:_MAX_MESSAGE] + "..."


def _kind_of(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")

"""A tool: what the policy is told of it, and the coroutine that answers a call."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_core import PluginError

from .bounded import Slots

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names that chat templates and servers of other dialects take as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One function that the policy may call.

    Raises:
        PluginError: the name is no name, or there is no description.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments: an object."""
    run: Callable[[Mapping[str, Any]], Awaitable[Any]]
    """Answers a call. The arguments are an object as the policy wrote it, checked by nobody yet. The answer is a
    ``ToolResult``, a text, an image of Pillow, a list with such images, or a value with a JSON."""
    timeout_s: float | None = None
    """Seconds that a call may take; None: those of the limits."""
    slots: Slots | None = None
    """Calls that may run at once, over all episodes; None: any number."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise PluginError(
                f"tool {self.name!r}: expected 1 to 64 letters, digits, underscores and hyphens as its name",
                code="tool/malformed-name",
            )
        if not self.description.strip():
            raise PluginError(
                f"tool {self.name!r} has no description, by which the policy learns what it is for; write one (the "
                "first paragraph of a function's docstring)",
                code="tool/no-description",
            )

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as chat templates read it, in the form of OpenAI's API."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }

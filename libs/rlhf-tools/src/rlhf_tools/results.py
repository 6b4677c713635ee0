"""Answers of tools: a text and images for the policy, and the kind of failure if the call failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rlhf_core import RLHFError


class ToolFailure(StrEnum):
    """Kind of a failed call; the policy reads it in ``error (kind): message``."""

    MALFORMED_CALL = "malformed_call"
    """The policy began a call in the form of its template and wrote none."""
    UNKNOWN_TOOL = "unknown_tool"
    """There is no tool of this name."""
    INVALID_JSON = "invalid_json"
    """The arguments are not one JSON object."""
    INVALID_ARGUMENTS = "invalid_arguments"
    """The arguments do not fit the tool's schema."""
    FAILED = "failed"
    """The tool raised an exception, or said that it failed."""
    TIMEOUT = "timeout"
    """The tool did not answer before its deadline."""
    INVALID_RESULT = "invalid_result"
    """The tool returned something that is neither a text nor an image, and has no JSON."""
    LIMIT = "limit"
    """A limit of calls, of text or of nested calls is used up; the tool was not called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """Answer to one call."""

    text: str
    """Text that the policy reads."""
    failure: ToolFailure | None = None
    """Kind of failure; None: the call succeeded."""
    cut: int = 0
    """Number of characters that the result was too long."""
    images: tuple[Any, ...] = ()
    """Images that the policy sees behind the text, as an observation's parts have them: of Pillow, bytes or paths."""

    @classmethod
    def failed(cls, failure: ToolFailure, message: str) -> ToolResult:
        """Return the answer to a call that failed: the kind, and what the policy may do about it."""
        return cls(text=f"error ({failure}): {message}", failure=failure)


class ToolError(RLHFError, RuntimeError):
    """A failure that a tool reports to the policy, in the words of its message.

    Any other exception of a tool reaches the policy as its type and the first line of its message. A ``RolloutError``
    reaches the run: it says that the environment failed, not the call.
    """

"""What became of one sample in one reward: a score, or what went wrong."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from ..errors import RLHFError

MAX_TEXT = 1000
"""Characters of a message; a user's exception may carry a whole data set in its text."""

_NUM_FRAMES = 3


class ProblemKind(StrEnum):
    """What went wrong, which decides what a message advises."""

    RAISED = "raised"
    """The reward raised; ``where`` has the lines."""
    RETURNED = "returned"
    """It returned something that is not one finite number per sample."""
    TIMED_OUT = "timed_out"
    """It did not finish in time and was stopped."""
    DIED = "died"
    """Its process ended."""
    NOT_REACHED = "not_reached"
    """Time or restarts were used up by other samples of the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why there is no score."""

    kind: ProblemKind
    text: str
    """Reads on after "the reward": "raised ZeroDivisionError: division by zero"."""
    where: tuple[str, ...] = ()
    """``file:line in function: code`` of the innermost frames of the user's code, outermost first; or the last
    lines that a dead process printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One sample in one reward. Exactly one of ``reward`` and ``problem`` is set."""

    reward: float | None = None
    """Finite, unweighted."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    problem: Problem | None = None


def problem_of(error: BaseException) -> Problem:
    """Describe an exception from a reward by its text and by the lines of the user's code that led to it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    where = _frames(error)
    cause = error.__cause__
    while cause is not None:
        where = _frames(cause) or where
        cause = cause.__cause__
    text = f"raised {type(error).__name__}"
    if message := _safe_text(error):
        text += f": {message}"
    return Problem(kind=ProblemKind.RAISED, text=text, where=where)


def shown(value: object) -> str:
    """A short ``repr`` for messages, also of objects whose ``repr`` raises."""
    try:
        text = repr(value)
    except Exception as error:
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return text if len(text) <= 200 else text[:200] + "..."


def _safe_text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as second:
        return f"<its text could not be made: {type(second).__name__}>"
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."


def _frames(error: BaseException) -> tuple[str, ...]:
    """The innermost frames of the user's code; of the framework's own only if there are no others."""
    if isinstance(error, RLHFError):
        return ()  # raised on purpose: its text says what is wrong
    # A deep recursion has a thousand equal frames; the limit keeps the innermost ones.
    stack = traceback.extract_tb(error.__traceback__, limit=-50)
    frames = [frame for frame in stack if not frame.filename.startswith("<frozen")]
    users = [frame for frame in frames if not _is_ours(Path(frame.filename))]
    return tuple(
        f"{frame.filename}:{frame.lineno} in {frame.name}: {(frame.line or '').strip()[:200]}"
        for frame in (users or frames)[-_NUM_FRAMES:]
    )


def _is_ours(path: Path) -> bool:
    return any(
        part == "asyncio" or part.startswith(("rlhf_core", "rlhf_plugin_")) for part in path.parts
    )

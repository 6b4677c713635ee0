"""Failures of the code of users, as words and lines that can be sent to another process."""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from .errors import RLHFError
from .storage.writing import is_full, reason_of

MAX_TEXT = 1000
"""Largest number of characters of a message; a user's exception may carry a whole data set in its text."""

_NUM_FRAMES = 3
_OURS = (
    "rlhf_config",
    "rlhf_core",
    "rlhf_data",
    "rlhf_episodes",
    "rlhf_guard",
    "rlhf_testing",
    "rlhf_trainer",
    "rlhf_weights",
    "rlhf_plugin_",
)
"""Beginnings of the names of packages whose frames are no lines of a user's code."""


class ProblemKind(StrEnum):
    """Kind of a problem, which decides the advice of its message."""

    RAISED = "raised"
    """The code raised an exception; ``where`` has the lines."""
    RETURNED = "returned"
    """The code returned something other than what was expected."""
    TIMED_OUT = "timed_out"
    """The code did not finish in time and was stopped."""
    DIED = "died"
    """The code's process ended."""
    NOT_REACHED = "not_reached"
    """Other calls used up the time or the restarts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Reason why there is no result."""

    kind: ProblemKind
    text: str
    """Predicate of a sentence about the component: "raised ZeroDivisionError: division by zero"."""
    where: tuple[str, ...] = ()
    """Lines ``file:line in function: code`` of the innermost frames of the user's code, outermost first; or the last
    lines that a dead process printed."""
    code: str | None = None
    """Code of the exception, if it is one of the framework's and has a code of its own."""


def problem_of(error: BaseException) -> Problem:
    """Return the problem of an exception: its text, and the lines of the user's code."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    where = _frames(error)
    cause: BaseException | None = None
    while (cause := (cause or error).__cause__) is not None:
        where = _frames(cause) or where
    text = f"raised {type(error).__name__}"
    if message := _safe_text(error):
        text += f": {message}"
    code = error.own_code if isinstance(error, RLHFError) else None
    return Problem(kind=ProblemKind.RAISED, text=text, where=where, code=code)


def headline(error: BaseException) -> str:
    """Return an error in one line: the first of its message, or its type; of code that exits, that it did."""
    if isinstance(error, SystemExit):
        return problem_of(error).text
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def log_switched_off(
    log: logging.Logger, error: BaseException, message: str, *arguments: object
) -> None:
    """Log that something failed, without which the run goes on to its end.

    An error with a name, and a disk without room, say themselves what is wrong. Any other is a fault of a program, and
    has its traceback.

    Args:
        message: who failed, as a format of ``arguments``.
    """
    message += " and is switched off for the rest of this run"
    if isinstance(error, RLHFError) or is_full(error):
        log.error(f"{message}: %s", *arguments, reason_of(error) or error)
    else:
        log.error(message, *arguments, exc_info=error)


def shown(value: object) -> str:
    """Return a short ``repr`` for messages, also of objects whose ``repr`` raises."""
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
    """Return the innermost frames of the user's code, or, without any, of the framework's code. If all of them are of
    installed packages, the line that called into these comes first."""
    if isinstance(error, RLHFError):
        return ()  # The framework raised the error on purpose, and its text says enough.
    # A deep recursion has a thousand equal frames; the limit keeps the innermost ones.
    stack = traceback.extract_tb(error.__traceback__, limit=-50)
    frames = [frame for frame in stack if not frame.filename.startswith("<frozen")]
    users = [frame for frame in frames if not is_ours(frame.filename)] or frames
    last = users[-_NUM_FRAMES:]
    if all(_is_installed(frame.filename) for frame in last):
        last[:0] = [frame for frame in users if not _is_installed(frame.filename)][-1:]
    return tuple(
        f"{frame.filename}:{frame.lineno} in {frame.name}: {(frame.line or '').strip()[:200]}"
        for frame in last
    )


def _is_installed(file: str) -> bool:
    return "site-packages" in file or file.startswith(str(Path(traceback.__file__).parent))


def is_ours(where: str) -> bool:
    """Return whether a file, or a line of ``Problem.where``, is the framework's."""
    folders = Path(where.partition(".py:")[0]).parts
    return any(part == "asyncio" or part.startswith(_OURS) for part in folders)

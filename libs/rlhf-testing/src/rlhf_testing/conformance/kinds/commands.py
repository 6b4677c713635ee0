"""Checks of commands: functions that take the words after ``rlhf NAME`` and return the exit code."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, cast

from rlhf_core.errors import RLHFError

from ..subject import Subject, checks_in

_UNKNOWN = "--no-option-of-any-command"


def _command(subject: Subject) -> Callable[[Sequence[str]], object]:
    # The factory of a command is the command: it is called with words, not with a config.
    command: Any = subject.make if subject.origin is None else subject.origin.load()
    return cast(Callable[[Sequence[str]], object], command)


def _called(subject: Subject, words: list[str]) -> tuple[object, str]:
    """Return the exit code and all that was printed; an error of this project ends a command with its own code."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            code = _command(subject)(words)
        except SystemExit as stop:
            code = stop.code
        except RLHFError as error:
            code = error.exit_code
            print(error)
    return code, printed.getvalue()


def check_help_is_an_answer(subject: Subject) -> None:
    """``--help`` prints what the command does and ends with 0."""
    code, printed = _called(subject, ["--help"])
    assert code in (0, None), f"exit code {code!r} after --help; printed: {printed[:200]!r}"
    assert printed.strip(), "nothing was printed by --help"


def check_unknown_options_are_refused(subject: Subject) -> None:
    """Words that the command does not understand are answered in words, and the exit code is not 0."""
    code, printed = _called(subject, [_UNKNOWN, "1"])
    assert isinstance(code, int | str), f"exit code {code!r}; expected a number above 0"
    assert code != 0, f"exit code 0 after {_UNKNOWN}, which means success"
    assert printed.strip() or isinstance(code, str), f"exit code {code} without a word of why"


def check_words_stay_as_they_are(subject: Subject) -> None:
    """The list of words is not changed, and a second call says the same."""
    words = ["--help"]
    _, first = _called(subject, words)
    assert words == ["--help"], f"the words became {words}"
    _, second = _called(subject, words)
    assert first == second, "the second --help printed another text"


CHECKS = checks_in(__name__)

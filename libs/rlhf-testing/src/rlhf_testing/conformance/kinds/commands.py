"""Checks of commands: functions that take the words after ``rlhf NAME`` and return the exit code."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, cast

from rlhf_core.errors import RLHFError
from rlhf_core.plugins import load

from ..subject import Subject, checks_in, traits

OWN_COMMANDS = frozenset(
    {"check", "data", "env", "new", "plugins", "quickstart", "show", "template", "train"}
)
"""Commands of ``rlhf`` itself, whose names no plugin gets."""
_UNKNOWN = "--no-option-of-any-command"


def _command(subject: Subject) -> Callable[[Sequence[str]], object]:
    # The factory of a command is the command: it is called with words, not with a config.
    command: Any = subject.make if subject.origin is None else subject.origin.load()
    return cast(Callable[[Sequence[str]], object], command)


def _is_registered(subject: Subject) -> bool:
    return subject.origin is not None


def _called(subject: Subject, words: list[str]) -> tuple[object, str]:
    """Return the exit code and all that was printed; an error of this project ends a command with its own code."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            code = _command(subject)(words)
            assert code is None or isinstance(code, int), (
                f"{words} returned {code!r}; expected an exit code, 0 or a number above it"
            )
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
    assert isinstance(code, str) or 0 <= code <= 255, (
        f"exit code {code}, which is {code % 256} in a shell"
    )
    assert code != 0, f"exit code 0 after {_UNKNOWN}, which means success"
    assert printed.strip() or isinstance(code, str), f"exit code {code} without a word of why"


@traits(_is_registered)
def check_its_name_is_free(subject: Subject) -> None:
    """No command of ``rlhf`` itself, and of no other installed plugin, has the name: who comes second is left out."""
    assert subject.origin is not None
    name, own = subject.origin.name.replace("_", "-"), subject.origin.component
    assert name not in OWN_COMMANDS, (
        f"rlhf {name} is a command of rlhf itself, so this one cannot be called; give it another name"
    )
    others = [
        entry.label
        for entry in load().registries["rlhf_commands"]
        if entry.name.replace("_", "-") == name and entry.component != own
    ]
    assert not others, f"rlhf {name} is the command of {others[0]} too; give it another name"


def check_words_stay_as_they_are(subject: Subject) -> None:
    """The list of words is not changed, and a second call says the same."""
    words = ["--help"]
    _, first = _called(subject, words)
    assert words == ["--help"], f"the words became {words}"
    _, second = _called(subject, words)
    assert first == second, "the second --help printed another text"


CHECKS = checks_in(__name__)

"""Errors as a person or a program reads them on stderr: ``error: MESSAGE``, or one JSON object on the last line.

``rlhf --errors json COMMAND ...``, or the variable ``RLHF_ERRORS``, asks for objects. Their fields are read from the
message, which begins with what it is about in the words that the user typed and ends with the fix; tests hold every
message to that (``docs/errors.md``).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from enum import StrEnum

from rlhf_core import ConfigError
from rlhf_core.errors import RLHFError

FLAG = "--errors"
VARIABLE = "RLHF_ERRORS"

_PLACES = (
    re.compile(r"-c (?P<file>[^:]+):(?:.*\(at line (?P<row>\d+))?"),
    re.compile(r"(?P<file>\S+?)(?:\[\w+\])?:row (?P<row>\d+)\b"),
    re.compile(r"(?P<file>\S+?\.\w+):(?P<row>\d+)\b"),
    re.compile(r"(?P<file>[^\s:]+\.toml): (?P<option>\w+(?:\.\w+)*)"),
    re.compile(r"(?P<file>[^\s:]+\.(?:arrow|csv|json|jsonl|parquet|py|toml|txt))\b"),
    re.compile(r"(?:No such option:|Invalid value for|Missing option) ?'?(?P<option>-[\w.-]*\w)"),
    re.compile(r"rlhf [\w -]+: unrecognized arguments: (?P<option>--?[\w.-]*\w)"),
    re.compile(r"(?P<option>--?[\w.-]*\w)"),
    re.compile(r"(?P<option>[a-z]\w*(?:\.\w+)+)"),
)
"""Forms in which messages begin: a file of options, a row, a line, a key, another file, a mistake of usage, a flag, a
path of an option."""
_ASIDE = re.compile(r"\n  (?:also wrong: |option of ).*")
"""Lines of a message behind what is wrong and how it is mended."""
_VERBS = (
    *(
        "Did you mean",
        "pip install",
        "Add",
        "Choose",
        "Convert",
        "Correct",
        "Drop",
        "Give",
        "Leave",
        "Make room",
        "Quote",
    ),
    *("Remove", "Set", "Use", "Write"),
)
_FIX = re.compile(
    rf"(?:^|(?<=[.;:,] )|(?<=\n)) *((?:{'|'.join(_VERBS)}) .*)", re.DOTALL | re.IGNORECASE
)
"""Sentence or clause with which a message tells what to do, up to its end."""


_CODES = {
    "CommandFailed": "run/findings",
    "Interrupted": "run/interrupted",
    "RunFailed": "run/failed",
    "UsageError": "usage/command-line",
}
"""Codes of the kinds that are no class of ``rlhf_core.errors``."""


class Form(StrEnum):
    """Form of errors on stderr."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReport:
    """One error, as a program reads it."""

    kind: str
    """Name of the error's class in ``rlhf_core.errors``; ``UsageError`` for words that a command does not take,
    ``RunFailed`` and ``Interrupted`` for runs that ended so, ``CommandFailed`` after findings, or the name of an
    exception that nobody foresaw."""
    code: str
    """Name of the mistake, such as ``data/missing-column``, which stays as it is from one version to the next;
    ``run/unforeseen`` for an exception that nobody foresaw."""
    message: str
    """Text that a person would read, whole."""
    exit_code: int
    option: str | None = None
    """Option that the message begins with: a flag as typed (``--train.steps``), or a key of ``file``."""
    file: str | None = None
    """File that the message begins with."""
    row: int | None = None
    """Line or row of ``file``, from 1."""
    fix: str | None = None
    """Part of the message that says what to do."""


_form: ContextVar[Form] = ContextVar("form", default=Form.TEXT)
_shown: ContextVar[bool] = ContextVar("shown", default=False)


def split_form(arguments: Sequence[str]) -> tuple[Form, list[str]]:
    """Return the form that the user asks for, and the command line without ``--errors FORM`` in front.

    Raises:
        ConfigError: there is no such form.
    """
    label, word, rest = VARIABLE, os.environ.get(VARIABLE, Form.TEXT), list(arguments)
    if rest and (rest[0] == FLAG or rest[0].startswith(f"{FLAG}=")):
        flag, equals, word = rest.pop(0).partition("=")
        label = flag
        if not equals:
            word = rest.pop(0) if rest else ""
    if word not in list(Form):
        raise ConfigError(
            f"{label}: expected {' or '.join(Form)}, got {word!r}", code="usage/unknown-value"
        )
    return Form(word), rest


def write_as(form: Form) -> None:
    """Write the errors of this context in ``form`` from now on; none is written yet."""
    _form.set(form)
    _shown.set(False)


def is_json() -> bool:
    """True when errors are written as objects."""
    return _form.get() is Form.JSON


def report_of(error: BaseException, exit_code: int) -> ErrorReport:
    """Return the report of an exception, with what its message says."""
    code = error.code if isinstance(error, RLHFError) else None
    return report(type(error).__name__, str(error), exit_code, code)


def report(kind: str, message: str, exit_code: int, code: str | None = None) -> ErrorReport:
    """Return a report whose option, file, row and fix are those of the message, None where it has none.

    Args:
        code: code of the error; None: that of the kind.
    """
    place = next((found for form in _PLACES if (found := form.match(message))), None)
    named = place.groupdict() if place else {}
    row, fix = named.get("row"), _FIX.search(_ASIDE.sub("", message))
    return ErrorReport(
        kind=kind,
        code=code or _CODES.get(kind, "run/unforeseen"),
        message=message,
        exit_code=exit_code,
        option=named.get("option"),
        file=named.get("file"),
        row=int(row) if row else None,
        fix=" ".join(fix[1].split()) if fix else None,
    )


def was_shown() -> bool:
    """True when an error was written in this context."""
    return _shown.get()


def tell(text: str, as_object: ErrorReport) -> None:
    """Write an error on stderr: ``text``, or ``as_object`` where a program reads it.

    A terminal that is gone may be why a run ended, which its exit code and the run folder say too.
    """
    _shown.set(True)
    with suppress(OSError):
        print(json.dumps(asdict(as_object)) if is_json() else text, file=sys.stderr)


def tell_program(kind: str, message: str, exit_code: int) -> None:
    """Write the object of an error about which a person has read already; nothing where nobody asked for objects."""
    if is_json():
        tell("", report(kind, message, exit_code))

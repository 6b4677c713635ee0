"""Command line flags derived from an options model, for a command that is not a training run."""

from __future__ import annotations

import argparse
import re
import types
from collections.abc import Sequence
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from rlhf_config import FlagParser
from rlhf_core import Config, ConfigError

ConfigT = TypeVar("ConfigT", bound=Config)


def parse_flags(
    model: type[ConfigT], words: Sequence[str], *, command: str, positional: str, about: str
) -> ConfigT:
    """Return the options that the words of a command line give.

    Args:
        command: the command as typed, such as ``rlhf serve-rm``.
        positional: name of the field that is given without a flag.
        about: description of the command in its help.

    Raises:
        ConfigError: a value is not allowed, a flag is unknown, or an argument is missing; names it.
        SystemExit: with 0 after help.
    """
    parser = FlagParser(prog=command, description=about)
    for name, info in model.model_fields.items():
        if name == positional:
            parser.add_argument(name, metavar="MODEL", help=info.description)
        else:
            parser.add_argument(
                flag_of(name),
                dest=name,
                default=argparse.SUPPRESS,
                metavar=_metavar(info),
                help=_help(info),
            )
    given = vars(parser.parse_args(list(words)))
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ConfigError(
            _message(error, given, positional, model), code="usage/command-line"
        ) from error


def flag_of(name: str) -> str:
    """Return the flag of a field, such as ``--batch-tokens`` for ``batch_tokens``."""
    return "--" + name.replace("_", "-")


def _message(
    error: ValidationError, given: dict[str, Any], positional: str, model: type[Config]
) -> str:
    lines = []
    for problem in error.errors():
        reason = problem["msg"].removeprefix("Value error, ")
        if not problem["loc"]:
            lines.append(_in_flags(reason, given, model))
            continue
        name = str(problem["loc"][0])
        written = "MODEL" if name == positional else flag_of(name)
        lines.append(f"{written} {given.get(name)}: {reason[:1].lower()}{reason[1:]}")
    return "; ".join(lines)


def _in_flags(reason: str, given: dict[str, Any], model: type[Config]) -> str:
    """Return what a check of several options says, with those that are flags here written as flags."""
    values = re.compile(rf"\b({'|'.join(model.model_fields)}) = ")
    typed = re.compile(rf"(?<![\w-])({'|'.join(given)})\b(?! is)")
    flagged = values.sub(lambda found: f"{flag_of(found[1])} ", reason)
    return typed.sub(lambda found: flag_of(found[1]), flagged)


def _help(info: FieldInfo) -> str:
    default = "" if info.default is None else f" (default: {str(info.default).lower()})"
    if isinstance(info.default, str):
        default = f" (default: {info.default})"
    return f"{info.description}{default}".replace("%", "%%")


def _metavar(info: FieldInfo) -> str:
    kind = info.annotation
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not types.NoneType)
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    if kind is bool:
        return "{true,false}"
    return "N" if kind in (int, float) else "TEXT"

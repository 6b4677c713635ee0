"""The command line as a layer: ``--a.b value``, ``--a.b=value``, a bare ``--a.b``, lists as several words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

from rlhf_core.errors import ConfigError

from .layers import MAX_DEPTH, Layer, Origin, Words, insert

FORMER_NAMES = {"log.tensorboard_images": "log.images"}
"""Option as it was called -> its name now. The old name is refused, with the new one."""
SHORT_NAMES = {
    "estimator": "algo.advantage.estimator",
    "loss": "algo.loss.policy",
    "model": "model.path",
    "data": "data.train",
    "reward": "reward.use",
    "env": "env.use",
    "executor": "rollout.executor",
    "engine": "engine.name",
    "backend": "backend.name",
    "runtime": "runtime.name",
    "optim": "actor.optim",
    "steps": "train.steps",
    "resume": "resume.checkpoint",
}
"""``--estimator x`` is ``--algo.advantage.estimator x``. ``seed`` and ``output`` are top-level keys."""

_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")
_NUMBER = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)


def parse_flags(words: Sequence[str]) -> Layer:
    """Return the layer that the words of a command line describe.

    A flag takes the words up to the next flag; one that is repeated appends. Nothing is converted here: types are
    known only when the components are. ``-3`` is a value; a value that starts with two dashes is written
    ``--flag=--value``.

    Raises:
        ConfigError: a word that belongs to no flag, or a flag that is not written like an option.
    """
    typed: dict[str, list[str]] = {}
    flags: dict[str, str] = {}
    current: list[str] | None = None
    for word in words:
        if not _is_text(word):
            raise ConfigError(
                f"{word!r}: expected UTF-8 text; this word has bytes that are not",
                code="config/word-of-bytes",
            )
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            path = _path(flag)
            flags.setdefault(path, flag)
            current = typed.setdefault(path, [])
            if equals:
                current.append(value)
                current = None
        elif word.startswith("-") and word != "-" and not _NUMBER.match(word):
            raise ConfigError(
                f"{word}: expected an option such as --model PATH; the only one-letter options are -c FILE and -h",
                code="config/one-letter-option",
            )
        elif current is None:
            raise ConfigError(
                f"{word!r}: expected an option such as --model PATH; this word belongs to none",
                code="config/stray-word",
            )
        else:
            current.append(word)
    return _layer(typed, flags)


def _is_text(word: str) -> bool:
    """False for a word with bytes that are not UTF-8, which ``config.toml`` could not record."""
    return not any("\ud800" <= character <= "\udfff" for character in word)


def _path(flag: str) -> str:
    name = flag.removeprefix("--")
    if not _KEY.fullmatch(name):
        raise ConfigError(
            f"{flag}: expected --section.option or a short name such as --model",
            code="config/no-section",
        )
    if name.count(".") >= MAX_DEPTH:
        raise ConfigError(
            f"{flag[:60]}...: expected an option; no section is this deep",
            code="config/too-deep-option",
        )
    return SHORT_NAMES.get(name, name)


def _layer(typed: dict[str, list[str]], flags: dict[str, str]) -> Layer:
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for path, words in typed.items():
        try:
            insert(values, path, Words(words))
        except KeyError as error:
            other = str(error.args[0])
            near = difflib.get_close_matches(other, flags, n=1, cutoff=0.0)
            raise ConfigError(
                f"{flags[path]}: {other!r} cannot be an option and a section in one command "
                f"(there is also {flags[near[0]]})",
                code="config/option-beside-section",
            ) from None
        origins[path] = Origin(flags[path], typed=True)
    return Layer(values, origins)

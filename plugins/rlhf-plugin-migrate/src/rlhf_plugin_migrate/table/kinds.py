"""Kinds of values, as another framework's command line reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import yaml

Value = bool | int | float | str | list[int] | list[float] | list[str] | None


@dataclass(frozen=True, slots=True)
class Kind:
    """Number of words that an option takes, and how they are read."""

    name: str
    """For messages, such as ``a number``."""
    read: Callable[[Sequence[str]], Value]
    """Value of the words. Raises ValueError for words of another kind."""
    least: int = 1
    """Smallest number of words."""
    most: int | None = 1
    """Largest number of words; None: all up to the next flag."""


SWITCH = Kind("nothing", lambda words: True, least=0, most=0)
WHOLE = Kind("a whole number", lambda words: int(words[0]))
NUMBER = Kind("a number", lambda words: float(words[0]))
TEXT = Kind("a text", lambda words: words[0])
PAIR = Kind("two numbers", lambda words: [float(word) for word in words], least=2, most=2)
NUMBERS = Kind("one number or more", lambda words: [float(word) for word in words], most=None)
SHARES = Kind(
    "numbers with commas between them",
    lambda words: [float(share) for share in words[0].split(",")],
)
TEXTS = Kind("texts", lambda words: list(words), least=0, most=None)


def choice(*names: str) -> Kind:
    """Return the kind of one of several words."""

    def read(words: Sequence[str]) -> str:
        if words[0] not in names:
            raise ValueError(words[0])
        return words[0]

    return Kind(f"one of {', '.join(names)}", read)


def as_in_yaml(word: str) -> Value:
    """Return a word as a YAML file has it: a number, true or false, a list or an object; else the word."""
    try:
        return cast(Value, yaml.safe_load(word))
    except yaml.YAMLError:
        return word

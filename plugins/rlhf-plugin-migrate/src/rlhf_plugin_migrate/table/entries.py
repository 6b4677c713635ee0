"""Entries of a table: one for each option of the other framework, with what becomes of it here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .kinds import Kind, Value


@dataclass(frozen=True, slots=True)
class To:
    """The option has a counterpart of the same meaning."""

    option: str
    """Path of the counterpart."""
    convert: Callable[[Value], Value] = lambda value: value
    """Value of the counterpart."""
    differs: str = ""
    """Difference of the counterpart nevertheless; empty if there is none."""
    if_given: bool = False
    """True for what changes no result: the other framework's default is not written out."""


@dataclass(frozen=True, slots=True, init=False)
class Rule:
    """The option is read together with others by a function, which says what becomes of it."""

    options: tuple[str, ...]
    """Paths of the options that the function may set for it."""

    def __init__(self, *options: str) -> None:
        object.__setattr__(self, "options", options)


@dataclass(frozen=True, slots=True)
class Nothing:
    """The option needs no counterpart."""

    why: str


@dataclass(frozen=True, slots=True)
class Missing:
    """The option has no counterpart."""

    why: str
    """Reason, and what to do instead."""
    off: tuple[Value, ...] = (None, False)
    """Values with which it does nothing, so that nothing is missing."""


Fate = To | Rule | Nothing | Missing


@dataclass(frozen=True, slots=True)
class OptionEntry:
    """One option of the other framework."""

    name: str
    """Its name in the newest version, without dashes."""
    kind: Kind
    default: Value
    """Its default there."""
    fate: Fate
    old: tuple[str, ...] = field(default=())
    """Its names in older versions."""

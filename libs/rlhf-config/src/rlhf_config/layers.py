"""Layers of options: one nested tree per source, with the place where each value was written.

A later layer wins, leaf by leaf; lists are replaced as a whole. Values from the command line stay words (``Words``)
until the type of their option is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf_core.errors import ConfigError

MAX_DEPTH = 32
"""Maximum depth of nested tables and lists, and of the sections in an option's path."""


class Words(tuple[str, ...]):
    """The words typed after a flag; empty when there were none."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """The place where a value was written."""

    label: str
    """For messages: the flag as typed, or ``file.toml: key``."""
    typed: bool = False
    """True for the command line: the user wants the option in this very run."""
    is_default: bool = False
    """True for the defaults of a command, which no user has written."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The options of one source."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Nested: ``{"train": {"steps": 10}}``."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """By dotted path, for every leaf of ``values``."""

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str = "Python") -> Layer:
        """Return a layer of plain nested values, for use from Python; ``source`` names it in messages."""
        origins = {path: Origin(f"{source}: {path}") for path, _ in leaves(values)}
        return cls(values, origins)

    @classmethod
    def of_paths(cls, values: Mapping[str, Any], source: str) -> Layer:
        """Return a layer of values by dotted path."""
        nested: dict[str, Any] = {}
        for path, value in values.items():
            insert(nested, path, value)
        return cls.of(nested, source)


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(dotted path, value)`` for everything that is not a table. An empty table is a leaf."""
    for key, value in values.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, path)
        else:
            yield path, value


def require_shallow(values: Any) -> None:
    """Check that tables and lists are nested at most ``MAX_DEPTH`` deep. No option is deeper.

    Raises:
        RecursionError: they are nested deeper, which could exhaust the stack of a function that walks them.
    """
    level = [values]
    for _ in range(MAX_DEPTH):
        below = [list(value.values()) if isinstance(value, dict) else value for value in level]
        level = [entry for entries in below for entry in entries if isinstance(entry, dict | list)]
        if not level:
            return
    raise RecursionError


def lookup(values: Mapping[str, Any], path: str) -> Any:
    """Return the value or table at a dotted path, or None when there is nothing."""
    found: Any = values
    for key in path.split("."):
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
    return found


def insert(values: dict[str, Any], path: str, value: Any) -> None:
    """Put ``value`` at a dotted path, making tables on the way.

    Raises:
        KeyError: a value stands where a table is needed, or a table where a value is to go; its argument is that path.
    """
    *parents, last = path.split(".")
    table = values
    for depth, key in enumerate(parents):
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise KeyError(".".join(parents[: depth + 1]))
    if isinstance(table.get(last), dict) and not isinstance(value, dict):
        raise KeyError(path)
    table[last] = value


def merge(layers: Sequence[Layer]) -> Layer:
    """Return all layers as one; later ones win.

    Raises:
        ConfigError: one layer has a section where another has a value.
    """
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for layer in layers:
        for path, value in leaves(layer.values):
            if value == {}:
                continue
            origin = layer.origins.get(path, Origin(path))
            try:
                insert(values, path, value)
            except KeyError as error:
                raise _collision(origin, path, str(error.args[0])) from None
            origins[path] = origin
    return Layer(values, origins)


def _collision(origin: Origin, path: str, other: str) -> ConfigError:
    if other == path:
        return ConfigError(
            f"{origin.label}: {path!r} is a section, not an option; write {path}.OPTION",
            code="config/section-no-option",
        )
    return ConfigError(
        f"{origin.label}: {other!r} is an option, not a section, so nothing can stand below it.\n"
        f"  The options of the component that it picks are in the section named after the component, beside {other!r}.",
        code="config/option-no-section",
    )

"""Values of the other framework's options: those that were written, and the defaults of all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from rlhf_core import ConfigError

from .entries import OptionEntry
from .kinds import Value


@dataclass(frozen=True, slots=True)
class Written:
    """An option as somebody wrote it."""

    text: str
    """The flag or key with its value, as in the input."""
    names: tuple[str, ...]
    """Entries that it sets; several for a flag that was later split in two. None: it is unknown, or its value is."""
    problem: str = ""
    """Why it sets nothing."""


class SourceOptions:
    """The options of one run of the other framework."""

    def __init__(
        self,
        entries: Mapping[str, OptionEntry],
        given: Mapping[str, Value],
        written: Sequence[Written],
        spelling: str = "--{}",
    ) -> None:
        """Create the options.

        Args:
            entries: table of the framework, by name.
            given: values that the input sets, by name.
            written: everything that stands in the input, in order.
            spelling: how a name is written.
        """
        self.entries = entries
        self.written = tuple(written)
        self._given = dict(given)
        self._spelling = spelling

    def given(self, *names: str) -> bool:
        """Return True if the input sets any of the options."""
        return any(name in self._given for name in names)

    def spelled(self, name: str) -> str:
        """Return an option's name as the other framework's users write it."""
        return self._spelling.format(name)

    def value(self, name: str) -> Value:
        """Return the value that the other framework would work with."""
        return self._given.get(name, self.entries[name].default)

    def flag(self, name: str) -> bool:
        """Return the value of a switch."""
        return bool(self.value(name))

    def whole(self, name: str) -> int:
        """Return the value of an option that is a whole number and never unset."""
        return int(cast(int, self.value(name)))

    def count(self, name: str) -> int:
        """Return the value of an option that is a number of things.

        Raises:
            ConfigError: it is below 1, with which the other framework would not train either.
        """
        number = self.whole(name)
        if number < 1:
            raise ConfigError(
                f"rlhf migrate: {self.spelled(name)}: expected at least 1, got {number}",
                code="migrate/not-a-count",
            )
        return number

    def number(self, name: str) -> float:
        """Return the value of an option that is a number and never unset."""
        return float(cast(float, self.value(name)))

    def text(self, name: str) -> str:
        """Return the value of an option as text; empty when it is unset."""
        value = self.value(name)
        return "" if value is None else str(value)

    def texts(self, name: str) -> list[str]:
        """Return the value of an option that is a list of texts, or one of them; empty when it is unset."""
        value = self.value(name)
        several = value if isinstance(value, list) else [] if value is None else [value]
        return [str(each) for each in several]

    def numbers(self, name: str) -> list[float]:
        """Return the value of an option that is a list of numbers; empty when it is unset."""
        return [float(value) for value in cast(list[float], self.value(name) or [])]

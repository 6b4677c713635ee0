"""Tables of verl's and SkyRL's keys: single ones, and all that begin alike, such as those of Megatron."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ...table.entries import Fate, OptionEntry
from ...table.kinds import TEXT, Kind, Value

Line = tuple[str, Kind, Value, Fate]
"""Names of a key, newest first, with spaces between them; kind, default and fate."""
Group = tuple[Fate, str]
"""A fate, and keys with spaces between them that have it whatever their values."""
Family = Callable[[str], Fate]
"""Function from the rest of a key to its fate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTable:
    """Keys of one program."""

    entries: Mapping[str, OptionEntry]
    """By the newest name of each."""
    names: Mapping[str, str]
    """Every name, also an older one -> the newest."""
    families: Mapping[str, Family]
    """Beginning of keys -> what becomes of each."""
    framework: str = "verl"

    def find(self, name: str) -> OptionEntry | None:
        """Return the entry of a key by any of its names; None: there is no such key."""
        if name in self.names:
            return self.entries[self.names[name]]
        longest = max(filter(name.startswith, self.families), key=len, default=None)
        if longest is None:
            return None
        return OptionEntry(name, TEXT, None, self.families[longest](name.removeprefix(longest)))


def key_table(
    lines: Iterable[Line],
    groups: Iterable[Group] = (),
    families: Iterable[tuple[str, Fate | Family]] = (),
    framework: str = "verl",
) -> KeyTable:
    """Return the table of one program.

    Args:
        families: beginnings of keys, with spaces between them, and what becomes of all those keys.
    """
    entries: dict[str, OptionEntry] = {}
    for fate, keys in groups:
        entries |= {name: OptionEntry(name, TEXT, None, fate) for name in keys.split()}
    for spelled, kind, default, fate in lines:
        name, *old = spelled.split()
        entries[name] = OptionEntry(name, kind, default, fate, tuple(old))
    return KeyTable(
        entries=entries,
        names={one: name for name, entry in entries.items() for one in (name, *entry.old)},
        families={
            beginning: fate if callable(fate) else _always(fate)
            for beginnings, fate in families
            for beginning in beginnings.split()
        },
        framework=framework,
    )


def _always(fate: Fate) -> Family:
    return lambda rest: fate

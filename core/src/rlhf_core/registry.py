"""Components by name, one registry per kind."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from .component import Registered
from .errors import AmbiguousComponent, UnknownComponent
from .moved import warn_of_old_name

ProductT = TypeVar("ProductT")


class Registry(Generic[ProductT]):
    """All components of one kind. Bare names work while they are unique, ``plugin:name`` always does."""

    def __init__(self, hook: str, kind: str) -> None:
        self.hook = hook
        self.kind = kind
        self._entries: dict[str, Registered[ProductT]] = {}

    def add(self, entry: Registered[ProductT]) -> None:
        """Add a component; the loader has checked that its plugin has no other of that name."""
        self._entries[entry.qualified] = entry

    def __iter__(self) -> Iterator[Registered[ProductT]]:
        return iter(sorted(self._entries.values(), key=lambda entry: (entry.name, entry.plugin)))

    def __len__(self) -> int:
        return len(self._entries)

    def names(self) -> list[str]:
        """Return the bare names, sorted, without aliases."""
        return sorted({entry.name for entry in self._entries.values()})

    def get(self, name: str) -> Registered[ProductT]:
        """Return the component called ``name``.

        Raises:
            AmbiguousComponent: several plugins provide the name; the message lists the qualified names.
            UnknownComponent: no plugin does; the message has the nearest name and the installed ones.
        """
        plugin, _, bare = name.rpartition(":")
        found = [entry for entry in self if entry.is_called(name)]
        found = [entry for entry in found if entry.plugin == plugin] or found
        if len(found) == 1:
            if plugin not in ("", found[0].plugin):
                warn_of_old_name(f"{name} is {found[0].qualified}", level=2)
            return found[0]
        if found:
            choices = ", ".join(entry.label for entry in found)
            raise AmbiguousComponent(
                f"{self.kind} {name!r} comes from {len(found)} plugins; write one of: {choices}"
            )
        known = [word for entry in self for word in (entry.name, *entry.component.aliases)]
        near = difflib.get_close_matches(bare, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownComponent(
            f"no {self.kind} {name!r}.{hint} Installed: {', '.join(self.names()) or 'none'}"
        )


AnyRegistry = Registry[Any]

"""The component behind an exception: whose code was running when it was raised."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from typing import Any

from .component import Registered
from .errors import RLHFError

BEGINNING = "in plugin "
"""Start of the note that names a plugin."""


def name_component(error: BaseException, components: Iterable[Registered[Any]]) -> str:
    """Note on an exception which component's code raised it, and return the note.

    Of the calls that led to it, the innermost one that belongs to a component decides: an environment that an executor
    of another plugin calls is named, and not the executor.

    Args:
        components: the components that the run has chosen.

    Returns:
        The note; empty for the errors of this project, whose messages say it themselves, for interrupts, and where no
        call belongs to a component.
    """
    if isinstance(error, RLHFError) or not isinstance(error, Exception):
        return ""
    noted = [note for note in getattr(error, "__notes__", ()) if note.startswith(BEGINNING)]
    if noted:
        return str(noted[0])
    owners: dict[str, list[Registered[Any]]] = {}
    for entry in components:
        owners.setdefault(module_of(entry), []).append(entry)
    for frame in reversed([frame for frame, _ in traceback.walk_tb(error.__traceback__)]):
        if entries := owners.get(frame.f_globals.get("__name__", "")):
            note = _note(entries)
            error.add_note(note)
            return note
    return ""


def _note(entries: Sequence[Registered[Any]]) -> str:
    """Name the component, or only the plugin where a module has several components of it."""
    first = entries[0]
    note = f"{BEGINNING}{first.plugin} ({first.origin})"
    return note if len({entry.name for entry in entries}) > 1 else f"{note}, component {first.name}"


def module_of(entry: Registered[Any]) -> str:
    """Return the name of the module in which a component's factory stands, without importing it."""
    factory = entry.component.factory
    if isinstance(factory, str):
        return factory.partition(":")[0]
    return str(getattr(factory, "__module__", ""))

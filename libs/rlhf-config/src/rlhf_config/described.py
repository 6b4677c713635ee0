"""Text of what a command would do, for ``--dry-run``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rlhf_core.plugins import Plugins

from .resolved import ResolvedOptions


def described(
    resolved: ResolvedOptions[Any],
    plugins: Plugins,
    sections: Iterable[tuple[str, Sequence[str]]],
) -> str:
    """Return the components with their origins, the sections, and the plugins that could not be loaded, in lines.

    Args:
        sections: title and lines of each.
    """
    components = [
        f"{slot:26} {one.registered.label}"
        for slot, found in resolved.selections.items()
        for one in found
    ]
    lines: list[str] = []
    for title, entries in (("components", components), *sections):
        lines += [title, *(f"  {entry}" for entry in entries)]
    lines += [f"plugin that could not be loaded: {failure}" for failure in plugins.failed]
    return "\n".join(lines)

"""Options about memory that nobody has set: those with which the installed memory planner says that a step is fastest.

What is written in a file or as a flag stays. A run that is resumed keeps what it had. Without a planner, on a machine
without GPUs, and for a run that cannot be predicted, the defaults of the options hold.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rlhf_core.capabilities import PLANS_MEMORY
from rlhf_core.contracts.runtime import MemoryFitter, MemoryOptions
from rlhf_core.errors import RLHFError
from rlhf_core.plugins import Plugins

from .common import CommandOptions
from .files import read_toml, writable
from .layers import Layer, leaves, lookup, merge
from .option_tree import OptionTree
from .paths import folder_to_resume
from .resolve import resolve_options
from .resolved import ResolvedOptions

log = logging.getLogger(__name__)

SOURCE = "the memory planner"
OptionsT = TypeVar("OptionsT", bound=CommandOptions)


def with_memory_options(
    resolved: ResolvedOptions[OptionsT],
    layers: Sequence[Layer],
    plugins: Plugins,
    options: OptionTree[OptionsT],
) -> ResolvedOptions[OptionsT]:
    """Return the configuration with a value for each option about memory that no layer sets.

    Args:
        resolved: what ``layers`` come to without the planner.

    Raises:
        ConfigError: see ``resolve_options``.
    """
    given = frozenset(path for path, _ in leaves(merge(layers).values))
    found = _planned(resolved, given, plugins)
    if found is None:
        return resolved
    folder = folder_to_resume(layers, options)
    if folder is not None and folder.config.is_file():
        had = read_toml(folder.config).values
        values = {path: lookup(had, path) for path in found.values}
        values = {path: value for path, value in values.items() if value is not None}
        found = MemoryOptions(values=values, reason="memory: as in the run that is resumed")
    chosen = Layer.of_paths(found.values, SOURCE)
    fitted = resolve_options([chosen, *layers], plugins, options)
    return replace(fitted, choices=(*fitted.choices, found.reason))


def _planned(
    resolved: ResolvedOptions[Any], given: frozenset[str], plugins: Plugins
) -> MemoryOptions | None:
    """Return the values of the first installed planner that has any."""
    for entry in plugins.registries["rlhf_commands"]:
        if PLANS_MEMORY not in entry.component.provides:
            continue
        planner = entry.load()
        if not isinstance(planner, MemoryFitter):
            continue
        try:
            found = planner.memory_options(
                resolved.command, writable(resolved.tree), given, plugins
            )
        except RLHFError as error:
            log.warning("the memory of this run cannot be predicted, so defaults hold: %s", error)
            return None
        if found is not None:
            return found
    return None

"""Columns of rows that components need, looked for before a run starts: a misspelled one would fail each sample."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlhf_config.checks.data_files import is_pattern, split_name
from rlhf_config.layers import Layer, merge
from rlhf_config.problems import Labels
from rlhf_config.resolved import ResolvedOptions, Selection
from rlhf_config.run import PromptData
from rlhf_core.errors import ConfigError

from ..forms.opened_sets import OpenedSets
from ..source import Source, Unreadable, filled_columns


def check_needed_columns(resolved: ResolvedOptions[Any], layers: Sequence[Layer]) -> None:
    """Refuse a component that needs a column which no row of ``data.train`` has.

    Rows are read up to the first one that has the column. Nothing is downloaded: where a set is a hub's, or tasks come
    from elsewhere, the run finds it out.

    Args:
        layers: the layers that ``resolved`` was made from; they tell where an option was written.

    Raises:
        ConfigError: names the option, the column and the columns that there are.
        DataError: a set cannot be read.
    """
    data = getattr(resolved.run, "data", None)
    needed = [
        (selection, column, option)
        for selections in resolved.selections.values()
        for selection in selections
        for column, option in sorted(selection.options.columns_needed().items())
    ]
    if not needed or not isinstance(data, PromptData) or not data.train:
        return
    entries = [split_name(entry)[1] for entry in data.train]
    if not all(is_pattern(entry) or Path(entry).exists() for entry in entries):
        return
    opened = OpenedSets(says=False)
    sources = [opened.open(data, entry, data.split, None, "data.train").source for entry in entries]
    labels = Labels(merge(layers))
    for selection, column, option in needed:
        if not any(_has(source, column) for source in sources):
            raise ConfigError(
                _problem(selection, column, _label(selection, option, labels), sources)
            )


def _has(source: Source, column: str) -> bool:
    rows = source.scan([column])
    return any(not isinstance(row, Unreadable) and column in row for row in rows)


def _label(selection: Selection, option: str | None, labels: Labels) -> str:
    """Return the option that names the column as it was written, or what chose the component that asks for it."""
    path = selection.slot if option is None else f"{selection.section}.{option}"
    return labels(path)


def _problem(selection: Selection, column: str, label: str, sources: Sequence[Source]) -> str:
    there = list(dict.fromkeys(name for source in sources for name in _columns(source)))
    near = difflib.get_close_matches(column, there, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    sets = ", ".join(dict.fromkeys(source.where(0).rpartition(":")[0] for source in sources))
    return (
        f"{label}: {selection.name} reads the column {column!r}, which no row of {sets} has.{hint}\n"
        f"  Columns: {', '.join(there) or 'none'}. Name one of them, or add this one to the rows."
    )


def _columns(source: Source) -> Iterator[str]:
    for row in source.scan():
        if not isinstance(row, Unreadable):
            yield from filled_columns(row)
            return

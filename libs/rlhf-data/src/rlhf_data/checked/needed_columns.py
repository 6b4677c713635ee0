"""Columns of rows that components need, looked for before a run starts: a misspelled one would fail each sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf_config.checks.data_files import split_name
from rlhf_config.layers import Layer, merge
from rlhf_config.problems import Labels
from rlhf_config.resolved import ResolvedOptions, Selection
from rlhf_config.run import PromptData
from rlhf_core.errors import ConfigError

from ..forms.opened_sets import OpenedSets
from ..source import Source
from .columns_there import are_here, has_column, missing


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
    if not are_here(data.train):
        return
    entries = [split_name(entry)[1] for entry in data.train]
    opened = OpenedSets(says=False)
    sources = [opened.open(data, entry, data.split, None, "data.train").source for entry in entries]
    labels = Labels(merge(layers))
    for selection, column, option in needed:
        if not any(has_column(source, column) for source in sources):
            raise ConfigError(
                _problem(selection, column, _label(selection, option, labels), sources),
                code="data/missing-column",
            )


def _label(selection: Selection, option: str | None, labels: Labels) -> str:
    """Return the option that names the column as it was written, or what chose the component that asks for it."""
    path = selection.slot if option is None else f"{selection.section}.{option}"
    return labels(path)


def _problem(selection: Selection, column: str, label: str, sources: Sequence[Source]) -> str:
    lacking = missing(column, sources)
    return (
        f"{label}: {selection.name} reads the column {column!r}, which no row of {lacking.sets} has.{lacking.near}\n"
        f"  Columns: {lacking.columns}. Name one of them, or add this one to the rows."
    )

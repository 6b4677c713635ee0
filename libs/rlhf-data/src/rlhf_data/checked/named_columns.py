"""Columns that options name, looked for before a run starts: each row would lack a misspelled one."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_config.checks.data_files import split_name
from rlhf_config.checks.named_columns import NamedColumns
from rlhf_config.layers import Layer, merge
from rlhf_config.problems import Labels
from rlhf_core.errors import ConfigError

from ..forms.form import RowKind
from ..forms.recognizing import formed
from ..source import Source
from ..sources import open_source
from .columns_there import are_here, has_column, missing


def check_named_columns(named: Sequence[NamedColumns], layers: Sequence[Layer]) -> None:
    """Refuse an option that names a column which no row of its sets has, neither as it is written nor in the form in
    which it is read.

    Rows are read up to the first one that has the column. Nothing is downloaded: where a set is a hub's, the run finds
    it out.

    Args:
        layers: the layers that the options were made from; they tell where an option was written.

    Raises:
        ConfigError: names the option, the column and the columns that there are.
        DataError: a set cannot be read.
    """
    labels = Labels(merge(layers))
    for one in named:
        if not are_here(one.sets):
            continue
        sources = [
            open_source(split_name(entry)[1], split=one.split, name=split_name(entry)[0])
            for entry in one.sets
        ]
        for option, column in one.columns:
            if not any(
                has_column(source, column) or _makes(source, one, column) for source in sources
            ):
                lacking = missing(column, sources)
                raise ConfigError(
                    f"{labels(option)} {column}: no row of {lacking.sets} has the column {column!r}.{lacking.near}\n"
                    f"  Columns: {lacking.columns}. Name one of them, or add this one to the rows.",
                    code="data/missing-column",
                )


def _makes(source: Source, named: NamedColumns, column: str) -> bool:
    """Return whether rows have a column once they are read in their form."""
    found = formed(source, named.section, tuple(RowKind), option=named.option, says=False)
    return found.source is not source and has_column(found.source, column)

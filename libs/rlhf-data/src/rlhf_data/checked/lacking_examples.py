"""Rows to learn from that lack a column, whatever their kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rlhf_config.common import HeldOutRows

from ..forms.form import RowKind
from ..forms.opened_sets import WantedSets
from ..learned.labeled import label_of
from ..learned.options import (
    ConversationColumns,
    LabeledColumns,
    PairColumns,
    PromptColumns,
    SequenceOptions,
    StepLabelColumns,
)
from ..learned.pairs import margin_of
from ..learned.reading import ColumnsT
from ..learned.row_loader import RowLoader
from ..learned.steps import labels_of
from ..row_images import RowImages
from ..rows import PromptFormat
from ..source import Row
from .lacking import Read, ReadTogether, refuse_bad, refuse_lacking
from .structure import AnyColumns, read_structure


def check_example_columns(
    loader: RowLoader[ColumnsT],
    columns: ColumnsT,
    train: Sequence[str],
    options: SequenceOptions,
    evaluation: HeldOutRows,
) -> None:
    """Refuse sets of ``eval.data`` or ``data.train`` as ``load_example_sets`` does: those of which every row lacks a
    column, and those with a label or a margin that is none.

    Where ``eval.fraction`` holds rows out, they are counted with the others.

    Args:
        loader: what reads the rows.
        columns: options with the form and the names of columns.

    Raises:
        DataError: no row of the sets has its columns, a label or a margin is bad, a set cannot be opened, or its rows
            are of a form that another command learns from.
    """
    for wanted in (
        WantedSets.of("eval.data", evaluation.data, evaluation),
        WantedSets.of("data.train", train, options),
    ):
        sets = ReadTogether(
            wanted=wanted,
            columns=columns,
            kinds=loader.kinds,
            reader=partial(_reader, loader.kinds),
        )
        refuse_lacking(sets)
        if isinstance(columns, PairColumns) and columns.margin_key is None:
            continue
        if options.on_bad_row == "fail" and not isinstance(columns, ConversationColumns):
            refuse_bad(replace(sets, reader=_judgment_reader))


def _judgment_reader(columns: PromptColumns) -> Read:
    """Return the reader of labels or margins alone, which take little time in all rows."""
    match columns:
        case LabeledColumns():
            return partial(label_of, key=columns.label_key)
        case StepLabelColumns():
            return partial(labels_of, key=columns.labels_key)
    assert isinstance(columns, PairColumns)
    return partial(margin_of, key=columns.margin_key)


def _reader(kinds: tuple[RowKind, ...], columns: PromptColumns) -> Read:
    kind, names, images = _kind(kinds, columns), AnyColumns.of(columns), RowImages()
    # The options of prompts say nothing of plain texts.
    format = PromptFormat() if kind is RowKind.TEXTS else PromptFormat.of(columns)

    def read(row: Row) -> None:
        read_structure(row, kind, names, format, images)

    return read


def _kind(kinds: tuple[RowKind, ...], columns: PromptColumns) -> RowKind:
    """Return the kind of rows by the columns that they have, as their loader does."""
    if not isinstance(columns, ConversationColumns):
        (kind,) = kinds
        return kind
    if columns.text_key is not None:
        return RowKind.TEXTS
    return RowKind.RESPONSES if columns.messages_key is None else RowKind.CONVERSATIONS

"""The reader of each command's rows, without a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_config import ResolvedOptions
from rlhf_data import (
    RowLoader,
    check_example_columns,
    load_conversations,
    load_labeled_answers,
    load_pairs,
    load_step_labels,
)

from .options import ExampleOptions
from .preferences.dpo_options import is_single, losses_of

_LOADERS: Mapping[str, RowLoader[Any]] = {
    "sft": load_conversations,
    "distill": load_conversations,
    "rm": load_pairs,
    "prm": load_step_labels,
}


def preference_loader(resolved: ResolvedOptions[Any]) -> RowLoader[Any]:
    """Return the reader of the rows that the chosen preference loss learns from."""
    return load_labeled_answers if is_single(losses_of(resolved.selections)[0]) else load_pairs


def check_rows(resolved: ResolvedOptions[Any]) -> None:
    """Refuse sets of which every row lacks a column, or of which a row has a label that is none.

    Raises:
        DataError: as from ``rlhf_data.check_example_columns``.
    """
    run: ExampleOptions = resolved.run
    loader = (
        _LOADERS[resolved.command] if resolved.command in _LOADERS else preference_loader(resolved)
    )
    check_example_columns(loader, run.data, run.data.train, run.data, run.eval)

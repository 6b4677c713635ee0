"""The rows of a command that trains on examples: those to train on, and held-out sets, none of which is trained on as
a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlhf_config.checks.data_files import set_name
from rlhf_config.common import HeldOutRows
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.errors import DataError
from rlhf_core.media.loader import ImagesOnUse

from ...held_out.sides import ALL, Side, refuse_trained_rows
from ..options import SequenceOptions
from .gathered import LearnedRows


class LoadRows(Protocol):
    """``load_conversations`` or one of its siblings, given all but these arguments."""

    def __call__(
        self, sets: Sequence[str], options: SequenceOptions, *, option: str, side: Side
    ) -> LearnedRows: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutSets:
    """Held-out rows of all sets, one set after the other."""

    rows: TrajectoryColumns
    sets: Mapping[str, NDArray[np.int64]]
    """Indices of the rows of each set, ascending, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleSets:
    """Rows to train on, and rows to evaluate on."""

    train: TrajectoryColumns
    sizes: tuple[int, ...]
    """Number of sequences of each set of ``train``, in their order."""
    held_out: HeldOutSets | None
    images: ImagesOnUse | None = None
    """Takes images of the rows in when they are used; None: they are there, or the rows have none."""


def load_example_sets(
    load: LoadRows, train: Sequence[str], options: SequenceOptions, evaluation: HeldOutRows
) -> ExampleSets:
    """Return the rows of ``data.train``, and those of ``eval.data`` or those that ``eval.fraction`` holds out.

    Raises:
        DataError: a set cannot be read, two held-out sets share a name, no row is held out, or the run trains on all
            rows of a held-out set.
    """
    option = "eval.data" if evaluation.data else "eval.fraction"
    held: LearnedRows | None = None
    if evaluation.data:
        _require_own_names(evaluation.data)
        limits = {"split": evaluation.split, "max_samples": evaluation.max_samples}
        held = load(evaluation.data, options.model_copy(update=limits), option=option, side=ALL)
        _require_rows(held, option)
    elif evaluation.fraction:
        side = Side(
            fraction=evaluation.fraction, is_evaluated=True, max_rows=evaluation.max_samples
        )
        held = load(train, options, option=option, side=side)
    rows = load(train, options, option="data.train", side=Side(fraction=evaluation.fraction))
    _require_rows(rows, "data.train")
    sizes = tuple(one.end - one.first for one in rows.sets)
    if held is None:
        return ExampleSets(train=rows.columns, sizes=sizes, held_out=None)
    sets = held.by_name()
    read = {name: held.read[_first_of_rows(held, at)] for name, at in sets.items()}
    refuse_trained_rows(rows.read, read, option)
    held_out = HeldOutSets(rows=held.columns, sets=sets)
    return ExampleSets(train=rows.columns, sizes=sizes, held_out=held_out)


def _require_own_names(entries: Sequence[str]) -> None:
    names = list(map(set_name, entries))
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(
            f"eval.data: two sets are called {twice[0]!r}; name them with NAME=PATH",
            code="data/repeated-name",
        )


def _require_rows(rows: LearnedRows, option: str) -> None:
    if left_out := [one.name for one in rows.sets if one.end == one.first]:
        raise DataError(
            f"{option}: no row of the set {left_out[0]!r} is left to use", code="data/none-left"
        )


def _first_of_rows(rows: LearnedRows, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first sequence of each data row among the sequences ``at``."""
    first: NDArray[np.int64] = at[np.unique(rows.columns.uid[at, 1], return_index=True)[1]]
    return first

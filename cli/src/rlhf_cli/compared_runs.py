"""The table of ``rlhf show RUN RUN --metrics``: runs beside each other, at equal steps, and the options that differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_config import leaves, read_toml
from rlhf_core.storage.run_folder import RunFolder

from .metrics_table import Point, chosen, course_of, point_cell, point_column, series_of
from .tables import Cell, Column, Parts, Table

EQUAL_STEPS = 3
"""Number of rows at equal steps: the last step that all runs have, and as many before it as are evenly spread."""
_OWN_PATHS = ("output",)
"""Options that differ between any two runs, and say nothing about them."""

Series = Mapping[str, Sequence[Point]]


def comparison_of(
    runs: Sequence[Path], records: Sequence[Iterable[Mapping[str, Any]]], words: str
) -> Table:
    """Return the table, with a column for each run.

    Rows of a metric are its last, lowest and highest value, and those at equal steps. The last rows are options that
    differ.

    Args:
        records: lines of each run's ``metrics.jsonl``.
        words: see ``metrics_table.chosen``.

    Raises:
        ConfigError: a word is in the name of no metric of any run, or a run's ``config.toml`` cannot be read.
    """
    series: list[Series] = [series_of(each) for each in records]
    names = dict.fromkeys(name for each in series for name in each)
    meant = chosen(words, list(names), " and ".join(map(str, runs)))
    rows: list[Sequence[Cell]] = [row for name in meant for row in _rows(name, series)]
    rows += _options(runs)
    heads = [point_column(str(run)) for run in runs]
    return Table([Column("name"), Column("what"), *heads], rows)


def _rows(name: str, series: Sequence[Series]) -> Iterator[Sequence[Cell]]:
    points = [each.get(name, ()) for each in series]
    courses = [course_of(name, each) if each else None for each in points]
    for what in ("last", "lowest", "highest"):
        yield name, what, *(point_cell(getattr(each, what, None)) for each in courses)
    # A resumed run may have done a step twice; its later value counts.
    by_step = [dict(each) for each in points]
    for step in _equal_steps(by_step):
        yield name, f"at step {step}", *(point_cell((step, each[step])) for each in by_step)


def _equal_steps(by_step: Sequence[Mapping[int, float]]) -> list[int]:
    """Return steps that all have, evenly spread, the last of them included."""
    common = sorted(set.intersection(*map(set, by_step)))
    count = min(EQUAL_STEPS, len(common))
    return [common[len(common) * number // count - 1] for number in range(1, count + 1)]


def _options(runs: Sequence[Path]) -> Iterator[Sequence[Cell]]:
    """Yield a row for each option that differs; none where a run has no ``config.toml``."""
    paths = [RunFolder(run).config for run in runs]
    if not all(path.is_file() for path in paths):
        return
    values = [dict(leaves(read_toml(path).values)) for path in paths]
    for name in dict.fromkeys(name for each in values for name in each):
        texts = [_text(each[name]) if name in each else None for each in values]
        if len(set(texts)) > 1 and name not in _OWN_PATHS:
            yield name, "option", *(text and Parts(text, (text, None)) for text in texts)


def _text(value: object) -> str:
    """Return the value of an option as text, not empty."""
    return value if value and isinstance(value, str) else json.dumps(value, default=str)

"""Columns that components need and that options name, looked for before a run starts: each row would lack a misspelled
one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from rlhf_config.checks.data_files import split_name
from rlhf_config.checks.named_columns import NamedColumns
from rlhf_config.common import HeldOutRows
from rlhf_config.layers import Layer, merge
from rlhf_config.problems import Labels
from rlhf_config.resolved import ResolvedOptions, Selection
from rlhf_config.run import PromptData
from rlhf_core.errors import ConfigError

from ..forms.form import RowKind
from ..forms.formed_source import LOOKED_AT
from ..forms.opened_sets import OpenedSets
from ..forms.recognizing import FormedSet, formed
from ..rows import BadRow, PromptFormat, RowProblem, lines_of
from ..source import Row, Source, Unreadable
from ..sources import open_source
from .columns_there import are_here, has_column, has_value, missing

_RESPONSE = "The response is {!r} here, a text: call the parameter so."
_OF_OTHERS = {
    "completions": "The response is 'responses' here, a list of texts even where prompts are messages: call the "
    "parameter so.",
    "completion": _RESPONSE.format("response"),
    "solution_str": _RESPONSE.format("response"),
    "completion_ids": "Tokens are 'token_ids' here, of prompt and response: call the parameter so, and take those "
    "that 'action_mask' marks.",
    "queries": "Prompt and response are 'prompts' and 'responses' here: call parameters so, and join the two.",
}
"""Argument of a reward function of another trainer -> what to write in its place."""
_RIGHT_ANSWER = "ground_truth"
"""Entry with the right answer in rows of verl and SkyRL, whose ``extra_info.answer`` is a worked solution."""


def check_needed_columns(
    resolved: ResolvedOptions[Any], layers: Sequence[Layer]
) -> OpenedSets | None:
    """Refuse a component that needs a column which no row of ``data.train`` has, and a reward that ends the run at a
    row of ``data.train`` or ``eval.data`` which it cannot score.

    For a column rows are read up to the first one that has it, and for such a reward all of them. Nothing is
    downloaded: where a set is a hub's, or tasks come from elsewhere, the run finds it out.

    Args:
        layers: the layers that ``resolved`` was made from; they tell where an option was written.

    Returns:
        The sets that were opened, for checks that follow; None: there was nothing to look for.

    Raises:
        ConfigError: names the option, the column and the columns that there are, or the rows.
        DataError: a set cannot be read.
    """
    data = getattr(resolved.run, "data", None)
    needed = [
        (selection, column, option)
        for selections in resolved.selections.values()
        for selection in selections
        for column, option in sorted(selection.columns.items())
    ]
    if not needed or not isinstance(data, PromptData) or not data.train:
        return None
    if not are_here(data.train):
        return None
    opened = OpenedSets(says=False)
    named = map(split_name, data.train)
    found = [opened.open(data, spec, data.split, name, "data.train") for name, spec in named]
    sources = [one.source for one in found]
    labels = Labels(merge(layers))
    for selection, column, option in needed:
        if not any(has_column(source, column, entries=True) for source in sources):
            raise ConfigError(
                _problem(selection, column, option, _label(selection, option, labels), sources),
                code="data/missing-column",
            )
    held_out = getattr(resolved.run, "eval", None)
    rewards = {selection.name: selection for selection, _, _ in needed if selection.reward}
    for selection in rewards.values():
        _check_rows(selection, data, "data.train", found, data.max_samples)
        if isinstance(held_out, HeldOutRows) and are_here(held_out.data):
            sets = [
                opened.open(data, spec, held_out.split, name, "eval.data")
                for name, spec in map(split_name, held_out.data)
            ]
            _check_rows(selection, data, "eval.data", sets, held_out.max_samples)
    return opened


def _check_rows(
    selection: Selection,
    data: PromptData,
    option: str,
    sets: Sequence[FormedSet[PromptData]],
    max_samples: int | None,
) -> None:
    """Refuse a reward that ends the run at rows which it cannot score."""
    if selection.reward is None or selection.reward.on_error != "fail":
        return
    bad, total = list[BadRow](), 0
    needed = selection.columns
    names = [one for name in needed for one in (name, name.partition(".")[0])]
    for one in sets:
        format = PromptFormat.of(one.columns)
        read = list(dict.fromkeys([*names, *format.columns]))
        for index, row in enumerate(islice(one.source.scan(read), max_samples)):
            total += 1
            if (
                isinstance(row, Unreadable)
                or (problem := _problem_of(selection, needed, row)) is None
            ):
                continue
            # A row without a usable prompt is left out, or ends the run by itself.
            with suppress(RowProblem):
                format.prompt(row)
                bad.append(BadRow(one.source.where(index), "label", problem))
    if bad:
        rows = "\n".join(lines_of(bad))
        raise ConfigError(
            f"{option}: the reward {selection.name} cannot score {len(bad)} of {total} rows\n{rows}\n"
            f"  Repair these rows or take them out, or set --{selection.section}.on_error drop, with which their "
            "samples are left out.",
            code="reward/unusable-label",
        )


def _problem_of(selection: Selection, needed: Collection[str], row: Row) -> str | None:
    """Return what keeps a reward from scoring a row's samples: a column that the row has not, or what is in it."""
    lacking = next((name for name in needed if not has_value(row, name)), None)
    if lacking is not None:
        return f"this row has no column {lacking!r}, which the reward reads. Columns: {', '.join(row) or 'none'}"
    return selection.options.row_problem(row)


def _label(selection: Selection, option: str | None, labels: Labels) -> str:
    """Return the option that names the column as it was written, or what chose the component that asks for it."""
    path = selection.slot if option is None else f"{selection.section}.{option}"
    return labels(path)


def _holder(source: Source, entry: str) -> str | None:
    """Return the column of the first rows that has an object with this entry."""
    for row in islice(source.scan(), LOOKED_AT):
        if isinstance(row, Unreadable):
            continue
        for name, value in row.items():
            if isinstance(value, Mapping) and value.get(entry) is not None:
                return name
    return None


def _is_text_of_objects(source: Source, column: str) -> bool:
    """Return whether a column of the first rows has objects as JSON text."""
    rows = (row for row in islice(source.scan(), LOOKED_AT) if not isinstance(row, Unreadable))
    return any(str(row.get(column)).lstrip().startswith('{"') for row in rows)


def _holder_in(sources: Sequence[Source], entry: str) -> str | None:
    return next(filter(None, (_holder(source, entry) for source in sources)), None)


def _problem(
    selection: Selection, column: str, option: str | None, label: str, sources: Sequence[Source]
) -> str:
    lacking = missing(column, sources)
    scores = selection.section.startswith("reward")
    own = _OF_OTHERS.get(column) if scores else None
    hint, entry = lacking.near, column
    if scores and option is not None and not hint and _holder_in(sources, _RIGHT_ANSWER):
        entry = _RIGHT_ANSWER
    holder = _holder_in(sources, entry)
    if holder is not None and option is not None:
        hint = f" Did you mean {f'{holder}.{entry}'!r}?"
    elif holder is not None:
        hint = f" It is in {holder!r}: call the parameter so, and take {holder}[{column!r}]."
    elif own is not None:
        hint = f" {own}"
    elif any(_is_text_of_objects(source, column.partition(".")[0]) for source in sources):
        hint = f" {column.partition('.')[0]!r} is JSON text: write it as an object, of which entries can be named."
    return (
        f"{label}: {selection.name} reads the column {column!r}, which no row of {lacking.sets} has.{hint}\n"
        f"  Columns: {lacking.columns}. Name one of them, or add this one to the rows."
    )


def check_named_columns(named: Sequence[NamedColumns], layers: Sequence[Layer]) -> None:
    """Refuse an option that names a column which no row of its sets has, neither as it is written nor in the form in
    which it is read.

    Rows are read up to the first one that has the column. Nothing is downloaded: where a set is a hub's, the run finds
    it out.

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

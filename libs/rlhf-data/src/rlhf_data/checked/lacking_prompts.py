"""Rows that are asked and lack a column: prompts, and responses to imitate beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rlhf_config.checks.data_files import split_name
from rlhf_config.resolved import ResolvedOptions
from rlhf_config.run import PromptData, RunConfig

from ..forms.form import RowKind
from ..forms.opened_sets import OpenedSets, WantedSets
from ..listing import listing_command
from ..responses import SUPERVISED, response_of, response_prompts
from ..rows import PromptFormat
from ..source import Row
from .lacking import Read, ReadTogether, refuse_lacking


def check_prompts(
    wanted: WantedSets,
    data: PromptData,
    model: Callable[[], str | None],
    opened: OpenedSets | None = None,
) -> None:
    """Refuse sets of prompts of which every row lacks a column, as the run does that reads them together.

    Args:
        data: options by which rows become prompts.
        model: folder or hub name of the tokenizer, for the command that lists all bad rows; None: there is none.
        opened: sets that are open already.

    Raises:
        DataError: as from ``refuse_lacking``.
    """
    specs = [split_name(entry)[1] for entry in wanted.entries]
    refuse_lacking(
        ReadTogether(
            wanted=wanted,
            columns=data,
            kinds=(RowKind.PROMPTS,),
            reader=lambda columns: PromptFormat.of(columns).prompt,
            listed_by=lambda: listing_command(data, specs, model()),
            opened=opened or OpenedSets(says=False),
        )
    )


def check_run(resolved: ResolvedOptions[RunConfig], *, opened: OpenedSets | None = None) -> None:
    """Refuse sets of a run of ``rlhf train`` of which every row lacks a column.

    Where ``eval.fraction`` holds rows out, they are counted with the others.

    Args:
        opened: sets that are open already.

    Raises:
        DataError: as from ``refuse_lacking``.
    """
    run = resolved.run
    data, held = run.data, run.eval

    def tokenizer() -> str:
        return run.model.tokenizer or run.model.path

    check_prompts(WantedSets.of("data.train", data.train, data), data, tokenizer, opened)
    for entry in held.data:
        check_prompts(WantedSets.of("eval.data", [entry], held), data, tokenizer, opened)
    refuse_lacking(
        ReadTogether(
            wanted=replace(WantedSets.of(SUPERVISED, run.supervised.data, data), max_samples=None),
            columns=run.supervised,
            kinds=(RowKind.RESPONSES,),
            reader=lambda columns: _response_reader(run, columns.response_key),
        )
    )


def _response_reader(run: RunConfig, response_key: str) -> Read:
    prompts = response_prompts(run)

    def read(row: Row) -> None:
        prompts.prompt(row)
        response_of(row, response_key)

    return read

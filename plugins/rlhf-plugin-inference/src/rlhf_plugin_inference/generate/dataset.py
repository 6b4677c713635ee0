"""The pass over all completions at the end, for the table and for the data set that is chosen from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rlhf_core.storage import written_whole
from rlhf_trainer.inference import fault_point

from .options import GenerateOptions
from .records import AnsweredPrompt, read_lines
from .selecting import CHOOSERS, LeftOut, Row
from .summary import GenerationSummary


def summarize(options: GenerateOptions, completions: Path) -> tuple[GenerationSummary, Path | None]:
    """Return the tally of a file of completions, and the path of the data set.

    The data set, ``MODE.jsonl`` beside the completions, appears in one step; None where ``select.mode`` is ``all``.
    """
    mode = options.select.mode
    target = completions.with_name(f"{mode}.jsonl")
    summary = GenerationSummary()
    if mode == "all":
        for _ in _rows(completions, options, summary):
            pass
        return summary, None
    with written_whole(target) as file:
        for row in _rows(completions, options, summary):
            file.write(json.dumps(row).encode() + b"\n")
        fault_point("export", 0)
    return summary, target


def _rows(completions: Path, options: GenerateOptions, summary: GenerationSummary) -> Iterator[Row]:
    """Yield the rows of the data set, and tally prompt after prompt."""
    for prompt in read_lines(completions):
        summary.add(prompt, is_scored=bool(options.reward.use))
        yield from _chosen(prompt, options, summary)


def _chosen(
    prompt: AnsweredPrompt, options: GenerateOptions, summary: GenerationSummary
) -> list[Row]:
    """Return the rows that a prompt gives, and count them."""
    choose = CHOOSERS.get(options.select.mode)
    if choose is None:
        return []
    rows = choose(prompt, options.select)
    summary.chosen = summary.chosen or 0
    if isinstance(rows, LeftOut):
        summary.left_out[rows.reason] += 1
        return []
    summary.chosen += len(rows)
    return rows

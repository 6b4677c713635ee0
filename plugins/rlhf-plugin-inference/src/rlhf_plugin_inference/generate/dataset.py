"""The pass over all completions at the end, for the table and for the data set that is chosen from them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rlhf_trainer.inference import fault_point, sync_folder, writing

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
    part = target.with_name(f"{target.name}.part")
    summary = GenerationSummary()
    with writing(str(target), part):
        with part.open("w", encoding="utf-8") as file:
            for prompt in read_lines(completions):
                summary.add(prompt, is_scored=bool(options.reward.use))
                file.writelines(f"{json.dumps(row)}\n" for row in _chosen(prompt, options, summary))
            file.flush()
            os.fsync(file.fileno())
        if mode == "all":
            part.unlink()
            return summary, None
        fault_point("export", 0)
        part.replace(target)
        sync_folder(target.parent)
    return summary, target


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

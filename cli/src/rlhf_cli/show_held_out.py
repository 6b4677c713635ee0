"""Rows that are held out, in a line for each set, as ``rlhf show`` prints them behind the rows of a step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from .records import Record, records_of

NUMBERS = ("nll", "loss", "margin")


def held_out_lines(path: Path, step: int) -> list[str]:
    """Return a line for each held-out set of the last evaluation up to a step: how many of its rows are recorded, and
    means over them; none where nothing is recorded.

    Args:
        path: the file of the evaluations' samples, ``eval_samples.jsonl``.

    Raises:
        ConfigError: a line of the file is no JSON object with a step.
    """
    rows: list[Record] = []
    for row in records_of(path) if path.is_file() else ():
        if row["step"] > step or "example" not in row:
            continue
        if rows and row["step"] != rows[0]["step"]:
            rows = []
        rows.append(row)
    names = dict.fromkeys(row["eval"] for row in rows)
    return [_line(name, [row for row in rows if row["eval"] == name]) for name in names]


def _line(name: str, rows: Sequence[Record]) -> str:
    """Return ``held out at step 10, unseen: 4 pairs, mean loss 0.52, mean margin 0.4, 75 % right``."""
    are_pairs = rows[0]["example"] == "pair"
    # Both rows of a pair have the pair's numbers.
    count = len(rows) // (2 if are_pairs else 1)
    noun = ("pair" if are_pairs else "row") + ("" if count == 1 else "s")
    words = [f"{count} {noun}"]
    for number in NUMBERS:
        if known := [row["rewards"][number] for row in rows if number in row["rewards"]]:
            words.append(f"mean {number} {_mean(known):.4g}")
    if right := [row["rewards"]["right"] for row in rows if "right" in row["rewards"]]:
        words.append(f"{100 * _mean(right):.3g} % right")
    return f"held out at step {rows[0]['step']}, {name}: {', '.join(words)}"


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)

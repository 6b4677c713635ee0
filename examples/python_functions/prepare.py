"""Write tasks: a Python function that applies some steps to a list of whole numbers, with hidden tests.

    python examples/python_functions/prepare.py

It downloads nothing. The same flags write the same files. No task of the held-out file is in the training file; both
are made from the same templates.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from steps import TEMPLATES, Step

TESTS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description="Write tasks of functions with hidden tests.")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "data", help="folder for the files"
    )
    parser.add_argument("--train", type=int, default=12_800, help="tasks to train on")
    parser.add_argument("--held-out", type=int, default=256, help="tasks to evaluate on")
    parser.add_argument("--fewest", type=int, default=3, help="fewest steps of a function")
    parser.add_argument("--most", type=int, default=6, help="most steps of a function")
    parser.add_argument("--seed", type=int, default=0, help="seed of the tasks")
    arguments = parser.parse_args()
    lengths = range(arguments.fewest, arguments.most + 1)
    if not lengths or not 2 <= lengths[0] <= lengths[-1] <= len(TEMPLATES):
        parser.error(f"--fewest and --most: expected 2 to {len(TEMPLATES)}, the fewest first")
    draw = random.Random(arguments.seed)
    held_out = tasks(arguments.held_out, lengths, draw, {})
    train = tasks(arguments.train, lengths, draw, held_out)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, rows in (("held_out", held_out), ("train", train)):
        text = "".join(json.dumps(row) + "\n" for row in rows.values())
        (arguments.output / f"{name}.jsonl").write_text(text, encoding="utf-8")
    print(f"{arguments.output}: {len(train)} tasks to learn from, {len(held_out)} held out")


def tasks(
    count: int, lengths: range, draw: random.Random, without: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return tasks by their text, none of them in ``without``, of the given numbers of steps."""
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        kinds = draw.sample(TEMPLATES, draw.choice(lengths))
        steps = [kind.drawn(draw) for kind in kinds]
        text = "\n".join(f"{at}. {step.sentence}" for at, step in enumerate(steps, 1))
        tests = [[numbers, applied(steps, numbers)] for numbers in inputs(draw)]
        # A function that always returns the same would pass where the steps leave nothing.
        if text in without or len({str(wanted) for _, wanted in tests}) < TESTS // 2:
            continue
        rows[text] = {"steps": text, "tests": tests}
    return rows


def applied(steps: list[Step], numbers: list[int]) -> list[int]:
    for step in steps:
        numbers = step(numbers)
    return numbers


def inputs(draw: random.Random) -> list[list[int]]:
    """Return the lists that a function is tried with: an empty one, one element, and longer ones with repetitions."""
    lists = [[], [draw.randint(-30, 30)]]
    while len(lists) < TESTS:
        some = [draw.randint(-30, 30) for _ in range(draw.randint(3, 9))]
        lists.append([*some, *draw.sample(some, 2)])
    return lists


if __name__ == "__main__":
    main()

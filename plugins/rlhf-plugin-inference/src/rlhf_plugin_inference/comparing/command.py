"""The command ``rlhf eval compare``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf_cli.tables import HELP, Form, print_table
from rlhf_config import FlagParser
from rlhf_core import ConfigError


def parser() -> FlagParser:
    """Return the parser of the command's words."""
    own = FlagParser(
        prog="rlhf eval compare",
        description="Compare two evaluations of the same tasks, task by task: the difference with its confidence "
        "interval, whether it could be chance, and which tasks each model wins.",
    )
    own.add_argument("first", metavar="A", type=Path, help="folder of an evaluation (its --output)")
    own.add_argument("second", metavar="B", type=Path, help="folder of another evaluation")
    own.add_argument(
        "--level", type=float, default=0.95, help="confidence of the intervals (default 0.95)"
    )
    own.add_argument(
        "--pass-threshold",
        type=float,
        default=None,
        help="smallest reward with which an episode passes (default: that of the evaluations)",
    )
    own.add_argument(
        "--seed", type=int, default=0, help="seed of the test by random signs (default 0)"
    )
    own.add_argument(
        "--by-task", action="store_true", help="list the tasks on which the models differ"
    )
    forms = own.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print the numbers as JSON")
    forms.add_argument(
        "--table",
        choices=[form.value for form in Form],
        metavar="|".join(Form),
        default=Form.TEXT.value,
        help="print a table, with a line for each quantity of each set, or with --by-task for each task that differs; "
        f"{HELP} (default text: blocks and intervals)",
    )
    return own


def compare(words: Sequence[str]) -> int:
    """Run ``rlhf eval compare WORDS`` and return the exit code.

    Raises:
        ConfigError: a folder has no finished evaluation, or the two have other tasks.
    """
    own = parser().parse_args(list(words))
    if not 0.5 < own.level < 1.0:
        raise ConfigError(
            f"--level {own.level:g}: expected more than 0.5 and less than 1, such as 0.95",
            code="config/out-of-range",
        )
    if own.seed < 0:
        raise ConfigError(f"--seed {own.seed}: expected 0 or more", code="config/out-of-range")
    # Imported here: help needs no NumPy.
    import json
    from dataclasses import asdict

    from .pairing import paired
    from .report import (
        compared,
        comparison_block,
        comparison_table,
        difference_lines,
        difference_table,
    )
    from .results import read_results

    first, second = read_results(own.first), read_results(own.second)
    threshold = own.pass_threshold
    if threshold is None:
        threshold = first.threshold
        if second.threshold != threshold:
            raise ConfigError(
                f"expected one threshold to pass; {first.folder} has {threshold:g}, {second.folder} "
                f"{second.threshold:g}. Set --pass-threshold.",
                code="eval/other-threshold",
            )
    pairs = list(paired(first, second))
    found = [compared(one, threshold=threshold, level=own.level, seed=own.seed) for one in pairs]
    if own.json:
        models = {"first": first.model, "second": second.model}
        print(json.dumps({**models, "sets": [asdict(one) for one in found]}, indent=1))
        return 0
    if own.table != Form.TEXT:
        table = difference_table(pairs) if own.by_task else comparison_table(found)
        print_table(table, Form(own.table))
        return 0
    print(f"A: {first.model} ({first.folder})\nB: {second.model} ({second.folder})")
    for tasks, comparison in zip(pairs, found, strict=True):
        print(f"\n{comparison_block(comparison)}")
        if own.by_task and comparison.reward.paired.ties < comparison.tasks:
            print(f"\n{difference_lines(tasks)}")
    return 0

"""What runs leave behind, for tests that compare them: metrics, the ledger, and when a death was noted."""

import json
import re
from datetime import datetime

from rlhf_trainer.durable.records import replay

from .conftest import SMALL_RUN


def train_here(*flags):
    """Train in this process, from its working directory, and return the exit code."""
    from rlhf_cli.main import main

    same = ["--reward", "my_reward.py:score", "--runtime.local.threads", "1"]
    return main(["train", *SMALL_RUN, *same, *flags])


def books_of(output):
    """Metrics of each step, and what became of each group of samples."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    balance = replay(output / "ledger.jsonl")
    assert balance.unsettled() == []
    return [line["metrics"] for line in lines], balance


def seconds_until_noted(folder, who, died):
    """From a death to the first warning of one that names the process.

    Args:
        who: a regular expression.
    """
    for line in (folder / "run" / "run.log").read_text().splitlines():
        found = re.match(rf"(\S+ \S+),(\d+) WARNING .*{who} .* died", line)
        if found:
            return datetime.fromisoformat(f"{found[1]}.{found[2]}").timestamp() - died
    raise AssertionError(f"no warning names {who}")

"""Seconds and memory in which a command that trains on examples starts, by the number of rows, without and with the
token cache: ``python benchmarks/many_rows.py --rows 1000 1000000``.

Each start is a process of its own that does one update on one pair or conversation of a tiny model, and ends. Peak
memory is that of the process (``ru_maxrss``), pages of mapped files that were touched included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rlhf_core.testing.tiny import write_tiny_model

COMMANDS = {
    "sft": lambda number: {"prompt": f"{number}+1=", "response": str(number + 1)},
    "rm": lambda number: {"prompt": f"{number}+1=", "chosen": str(number + 1), "rejected": "0"},
}
STARTS = ("off", "first", "second")
"""Kinds of starts: without the cache, with an empty one, with that of the first."""
QUIET = ("--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false")
SMALL = ("--steps", "1", "--train.batch_size", "1", "--checkpoint.at_end", "false")


class Start(NamedTuple):
    """One start."""

    seconds: float
    cpu_seconds: float
    """Of all threads: what a machine that others use does not change much."""
    peak_mib: float


def write_rows(path: Path, command: str, count: int) -> None:
    """Write so many short rows of a command."""
    with path.open("w") as file:
        file.writelines(json.dumps(COMMANDS[command](number)) + "\n" for number in range(count))


def started(command: str, folder: Path, rows: Path, cache: str) -> Start:
    """Run a command for one update and return what it took.

    Raises:
        RuntimeError: the command failed.
    """
    words = [command, "--model", str(folder / "model"), "--data", str(rows), *SMALL, *QUIET]
    words += ["--data.cache", cache, "--output", tempfile.mkdtemp(dir=folder) + "/run"]
    words += ["--checkpoint.export", "false"]
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "rlhf_cli", *words], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"rlhf {' '.join(words)} ended with status {status}")
    seconds = time.perf_counter() - begun
    return Start(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def measured(
    commands: list[str], counts: list[int], starts: list[str]
) -> Iterator[dict[str, object]]:
    """Yield a line for each start."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_tiny_model(folder / "model", hidden_size=32, num_layers=2, num_heads=2)
        for command in commands:
            for count in counts:
                rows = folder / "rows.jsonl"
                write_rows(rows, command, count)
                for what in starts:
                    cache = "off" if what == "off" else str(folder / "cache")
                    start = started(command, folder, rows, cache)
                    yield {
                        "command": command,
                        "rows": count,
                        "cache": what,
                        "seconds": round(start.seconds, 1),
                        "cpu_seconds": round(start.cpu_seconds, 1),
                        "peak_mib": round(start.peak_mib),
                    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--rows", nargs="+", type=int, default=[1000, 1_000_000])
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    given = parser.parse_args()
    for line in measured(given.commands, given.rows, given.starts):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

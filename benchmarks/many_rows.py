"""Seconds and memory in which the rows of a command that trains on examples are read, by their number, without and with
the token cache: ``python benchmarks/many_rows.py --rows 1000 1000000``.

Each start is a process of its own that reads short rows with the tokenizer of a tiny model, takes the rows of one
update, and ends. Peak memory is that of the process (``ru_maxrss``), pages of mapped files that were touched included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from rlhf_data import (
    ConversationColumns,
    PairColumns,
    SequenceOptions,
    TokenizerRenderer,
    load_conversations,
    load_pairs,
)
from rlhf_testing.tiny import tiny_tokenizer

ROWS = {
    "sft": lambda number: {"prompt": f"{number}+1=", "response": str(number + 1)},
    "rm": lambda number: {"prompt": f"{number}+1=", "chosen": str(number + 1), "rejected": "0"},
}
STARTS = ("off", "first", "second")
"""Kinds of starts: without the cache, with an empty one, with that of the first."""


def write_rows(path: Path, command: str, count: int) -> None:
    """Write so many short rows of a command."""
    with path.open("w") as file:
        file.writelines(json.dumps(ROWS[command](number)) + "\n" for number in range(count))


def read(command: str, rows: str, cache: str) -> None:
    """Read the rows in this process, and print what it took."""
    begun = time.perf_counter()
    tokenizer = tiny_tokenizer()
    given = SequenceOptions(cache=cache), TokenizerRenderer(tokenizer)
    eos = tokenizer.eos_token_id
    if command == "sft":
        found = load_conversations([rows], ConversationColumns(), *given, eos=eos)
    else:
        found = load_pairs([rows], PairColumns(), *given, eos=eos)
    found.columns.select(np.arange(0, len(found.columns), len(found.columns) // 64))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    took = {
        "seconds": round(time.perf_counter() - begun, 1),
        # Of all threads, imports included: what others on the machine do not change much.
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mib": round(usage.ru_maxrss / 1024),
    }
    print(json.dumps(took))


def started(command: str, rows: Path, cache: str) -> dict[str, float]:
    """Return what a process took that reads the rows."""
    words = [sys.executable, __file__, "--read", command, str(rows), cache]
    said = subprocess.run(words, check=True, capture_output=True, text=True, env=dict(os.environ))
    took: dict[str, float] = json.loads(said.stdout.splitlines()[-1])
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--rows", nargs="+", type=int, default=[1000, 1_000_000])
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        read(*given.read)
        return
    for command in given.commands:
        for count in given.rows:
            with tempfile.TemporaryDirectory() as folder:
                rows = Path(folder) / "rows.jsonl"
                write_rows(rows, command, count)
                for start in given.starts:
                    cache = "off" if start == "off" else f"{folder}/cache"
                    line = {"command": command, "rows": count, "start": start}
                    print(json.dumps(line | started(command, rows, cache)), flush=True)


if __name__ == "__main__":
    main()

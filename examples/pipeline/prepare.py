"""Write the pipeline's data and its first model: digits to reverse, and which of two answers people liked better.

    python examples/pipeline/prepare.py

It downloads nothing. Held-out strings occur in no training data. The same flags write the same files.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rlhf_testing.tiny import write_tiny_model

ALPHABET = "0123456789=.!"
DIGITS, HELD_OUT = 3, 128


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the pipeline's data and model.")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).parent / "data",
        help="folder for the data sets and model/",
    )
    folder: Path = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    strings = [f"{number:0{DIGITS}d}" for number in range(10**DIGITS)]
    draw.shuffle(strings)
    for name, part in (("held_out", strings[:HELD_OUT]), ("train", strings[HELD_OUT:])):
        write_rows(folder / f"{name}_prompts.jsonl", ({"prompt": f"{digits}="} for digits in part))
        write_rows(folder / f"{name}_answers.jsonl", answers(part))
        write_rows(folder / f"{name}_pairs.jsonl", (pair(digits, draw) for digits in part))
    write_tiny_model(
        folder / "model",
        alphabet=ALPHABET,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        initializer_range=0.08,
    )
    print(f"{folder}: {len(strings) - HELD_OUT} strings to learn, {HELD_OUT} held out, and a model")


def answers(strings: list[str]) -> Iterator[dict[str, str]]:
    """Yield two demonstrations of each: the digits in reverse, closed by one mark and by the other."""
    for digits in strings:
        for mark in ".!":
            yield {"prompt": f"{digits}=", "response": digits[::-1] + mark}


def pair(digits: str, draw: random.Random) -> dict[str, str]:
    """Return two answers: whole ones are liked better than cut ones, and otherwise the mark ``!`` better than ``.``."""
    whole, mark = digits[::-1], draw.choice(".!")
    chosen, rejected = draw.choice(
        [(f"{whole}!", f"{whole}."), (f"{whole}{mark}", f"{whole[:-1]}{mark}")]
    )
    return {"prompt": f"{digits}=", "chosen": chosen, "rejected": rejected}


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()

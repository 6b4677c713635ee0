"""Write questions of reasoning-gym's `gsm_symbolic`: word problems whose names and numbers are drawn for each question.

    pip install "reasoning-gym>=0.1.25,<0.2"
    python examples/gsm_symbolic/prepare.py

It downloads nothing. The library makes question i of a data set from the seed + i, so the held-out questions come from
seeds far from those of training. Both are made from the same 100 templates. Some templates have few variants, so a
question that is held out is left out of training.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection
from pathlib import Path

TRAIN_SEED, HELD_OUT_SEED = 0, 10_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the questions of gsm_symbolic.")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "data", help="folder for the files"
    )
    parser.add_argument("--train", type=int, default=12_800, help="questions to train on")
    parser.add_argument("--held-out", type=int, default=500, help="questions to evaluate on")
    arguments = parser.parse_args()
    folder: Path = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    held_out = questions(HELD_OUT_SEED, arguments.held_out)
    train = questions(TRAIN_SEED, arguments.train, without={row["question"] for row in held_out})
    for name, rows in (("train", train), ("held_out", held_out)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{folder}: {len(train)} questions to learn from, {len(held_out)} held out")


def questions(
    seed: int, count: int, without: Collection[str] = frozenset()
) -> list[dict[str, str]]:
    """Return ``count`` questions with their answers, each once and none of those in ``without``."""
    import reasoning_gym

    rows: dict[str, str] = {}
    for entry in reasoning_gym.create_dataset("gsm_symbolic", seed=seed, size=2 * count):
        if entry["question"] not in without:
            rows.setdefault(entry["question"], str(entry["answer"]))
        if len(rows) == count:
            return [{"question": question, "answer": answer} for question, answer in rows.items()]
    raise SystemExit(f"only {len(rows)} of {count} questions are different")


if __name__ == "__main__":
    main()

"""Write a tiny model with random weights, and demonstrations of the form of answers.

The answers of the demonstrations are right only by chance.

python examples/rlhf-env-countdown/prepare.py
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_env_countdown.problems import Problems
from rlhf_testing.tiny import write_tiny_model

ALPHABET = "0123456789+-*/ >:"
PROBLEMS = Problems(split="train", size=2, largest=15, largest_target=60)


def main() -> None:
    arguments = parsed_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    write_tiny_model(
        arguments.output / "model",
        alphabet=ALPHABET,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        initializer_range=0.08,
        seed=arguments.seed,
    )
    draw = random.Random(arguments.seed)
    # The last problems: training begins with the first.
    rows = [
        demonstration(PROBLEMS[len(PROBLEMS) - 1 - index], draw)
        for index in range(arguments.demonstrations)
    ]
    path = arguments.output / "demonstrations.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{arguments.output}: a model, and {len(rows)} demonstrations")


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Write the model and demonstrations of the recipe."
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).parent / "data",
        help="folder for model/ and demonstrations.jsonl",
    )
    parser.add_argument("--demonstrations", type=int, default=2048, help="number of demonstrations")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the weights and demonstrations"
    )
    return parser.parse_args()


def demonstration(problem: Mapping[str, Any], draw: random.Random) -> dict[str, str]:
    """Return a problem with an answer that has its numbers and any operator between them."""
    left, right = draw.sample(problem["numbers"], 2)
    given = " ".join(map(str, problem["numbers"]))
    return {
        "prompt": f"{given}>{problem['target']}:",
        "response": f"{left}{draw.choice('+-*/')}{right}",
    }


if __name__ == "__main__":
    main()

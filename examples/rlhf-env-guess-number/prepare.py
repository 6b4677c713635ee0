"""Write the tiny model, with random weights, that the recipe trains.

python examples/rlhf-env-guess-number/prepare.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rlhf_testing.tiny import write_tiny_model

ALPHABET = "0123456789?!<>"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the model of the recipe.")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "data", help="folder for model/"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights")
    arguments = parser.parse_args()
    folder = write_tiny_model(
        arguments.output / "model",
        alphabet=ALPHABET,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        initializer_range=0.08,
        seed=arguments.seed,
    )
    print(f"{folder}: a model")


if __name__ == "__main__":
    main()

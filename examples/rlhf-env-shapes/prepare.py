"""Write the tiny image-text model, with random weights, that the recipe trains.

python examples/rlhf-env-shapes/prepare.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rlhf_testing.tiny_vision import VISION_FAMILIES, write_tiny_vision_model

ALPHABET = "rgbycnpkst?01234"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the model of the recipe.")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "data", help="folder for model/"
    )
    parser.add_argument(
        "--family", choices=VISION_FAMILIES, default="qwen2_5_vl", help="family of the model"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights")
    arguments = parser.parse_args()
    folder = write_tiny_vision_model(
        arguments.output / "model",
        arguments.family,
        alphabet=ALPHABET,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        vision_layers=1,
        initializer_range=0.08,
        seed=arguments.seed,
    )
    print(f"{folder}: a model")


if __name__ == "__main__":
    main()

"""Write what the quickstart needs: digit strings to reverse, and a tiny model with random weights.

    python examples/reverse_digits/prepare.py

It downloads nothing. Held-out strings do not occur in the training data. The same flags write the same files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rlhf_cli.quickstart.files import write_task


def main() -> None:
    arguments = parsed_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    rows = write_task(
        arguments.output,
        digits=arguments.digits,
        held_out=arguments.held_out,
        hidden_size=arguments.hidden_size,
        seed=arguments.seed,
    )
    print(
        f"{arguments.output}: {rows} training and {arguments.held_out} held-out rows, and a model"
    )


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Write the quickstart's data and model.")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).parent / "data",
        help="folder for train.jsonl, test.jsonl and model/",
    )
    parser.add_argument("--digits", type=int, default=3, help="length of the strings, 2 to 6")
    parser.add_argument("--held-out", type=int, default=128, help="strings kept for evaluation")
    parser.add_argument("--hidden-size", type=int, default=64, help="width of the model")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the shuffle and of the weights"
    )
    arguments = parser.parse_args()
    if not 2 <= arguments.digits <= 6:
        parser.error(f"--digits is {arguments.digits}; expected 2 to 6")
    if not 0 < arguments.held_out < 10**arguments.digits:
        parser.error(
            f"--held-out is {arguments.held_out}; expected 1 to {10**arguments.digits - 1}"
        )
    return arguments


if __name__ == "__main__":
    main()

"""Problems of the game, by number: each has a solution, and those of different splits never are the same problem."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

SPLITS = {"train": 1_000_000, "eval": 256}
"""Split -> number of problems."""
_EVAL_SHARE = 16
"""One problem of this many belongs to the split ``eval``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems(Sequence[Mapping[str, Any]]):
    """Problems of a split, each made when it is asked for."""

    split: str
    size: int
    """Number of numbers of a problem."""
    largest: int
    """Largest number."""
    largest_target: int

    def __len__(self) -> int:
        return SPLITS[self.split]

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        draw = random.Random(f"countdown {self.split} {index} {self.size} {self.largest}")
        while True:
            numbers = [draw.randint(1, self.largest) for _ in range(self.size)]
            target, solution = _combined(numbers, draw)
            if (
                target.denominator == 1
                and 1 <= target <= self.largest_target
                and int(target) not in numbers
                and _split_of(numbers, int(target)) == self.split
            ):
                return {
                    "key": f"{self.split}-{index}",
                    "numbers": numbers,
                    "target": int(target),
                    "solution": solution,
                }


def _combined(numbers: Sequence[int], draw: random.Random) -> tuple[Fraction, str]:
    """Return the value and the text of a random expression of all the numbers."""
    parts = [(Fraction(number), str(number)) for number in numbers]
    while len(parts) > 1:
        (left, left_text), (right, right_text) = (
            parts.pop(draw.randrange(len(parts))) for _ in range(2)
        )
        operator = draw.choice("+-*/" if right else "+-*")
        match operator:
            case "+":
                value = left + right
            case "-":
                value = left - right
            case "*":
                value = left * right
            case _:
                value = left / right
        parts.append((value, f"({left_text} {operator} {right_text})"))
    value, text = parts[0]
    return value, text[1:-1] if text.startswith("(") else text


def _split_of(numbers: Sequence[int], target: int) -> str:
    """Return the split that a problem belongs to, whichever way it was drawn."""
    name = f"{sorted(numbers)} {target}".encode()
    return "eval" if hashlib.sha256(name).digest()[0] % _EVAL_SHARE == 0 else "train"

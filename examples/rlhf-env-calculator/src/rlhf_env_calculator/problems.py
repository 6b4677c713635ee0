"""Problems by number, computed from left to right; those of different splits never are the same problem."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SPLITS = {"train": 1_000_000, "eval": 256}
"""Split -> number of problems."""
_EVAL_SHARE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums(Sequence[Mapping[str, Any]]):
    """Problems of a split, each made when it is asked for."""

    split: str
    digits: int
    """Digits of a number, at most; most numbers have all of them."""
    numbers: int
    operators: tuple[str, ...]

    def __len__(self) -> int:
        return SPLITS[self.split]

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        draw = random.Random(f"calculator {self.split} {index} {self.digits} {self.numbers}")
        while True:
            numbers = [draw.randrange(10**self.digits) for _ in range(self.numbers)]
            operators = [draw.choice(self.operators) for _ in numbers[1:]]
            problem = written(numbers, operators)
            if _split_of(problem) == self.split:
                answer = numbers[0]
                for operator, number in zip(operators, numbers[1:], strict=True):
                    answer = applied(answer, operator, number)
                return {"key": f"{self.split}-{index}", "problem": problem, "answer": str(answer)}


def applied(left: int, operator: str, right: int) -> int:
    """Return the result of one operation."""
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
    raise ValueError(f"unknown operator {operator!r}; expected +, - or *")


def written(numbers: Sequence[int], operators: Sequence[str]) -> str:
    """Return a problem as text; parentheses say that it is computed from left to right."""
    text = str(numbers[0])
    for position, (operator, number) in enumerate(zip(operators, numbers[1:], strict=True)):
        text = f"{text} {operator} {number}" if not position else f"({text}) {operator} {number}"
    return text


def _split_of(problem: str) -> str:
    digest = hashlib.sha256(problem.encode()).digest()
    return "eval" if digest[0] % _EVAL_SHARE == 0 else "train"

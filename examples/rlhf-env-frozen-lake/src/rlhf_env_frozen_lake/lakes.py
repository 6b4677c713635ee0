"""Lakes by number: random ones that can be crossed, and those of different splits never are the same lake."""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SPLITS = {"train": 1_000_000, "eval": 128}
"""Split -> number of lakes."""
_EVAL_SHARE = 8
_TRIES = 200
"""Draws after which a lake may be of either split: very small ones are few."""

STEPS = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
"""Direction -> change of row and column, in the order of Gymnasium's actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lakes(Sequence[Mapping[str, Any]]):
    """Lakes of a split, each made when it is asked for."""

    split: str
    size: int
    frozen: float

    def __len__(self) -> int:
        return SPLITS[self.split]

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        draw = random.Random(f"frozen_lake {self.split} {index} {self.size} {self.frozen}")
        tries = 0
        while True:
            lake = self._drawn(draw)
            tries += 1
            if way(lake) is not None and (_split_of(lake) == self.split or tries > _TRIES):
                return {"key": f"{self.split}-{index}", "lake": lake}

    def _drawn(self, draw: random.Random) -> list[str]:
        last = self.size - 1
        return [
            "".join(
                "S" if (row, column) == (0, 0)
                else "G" if (row, column) == (last, last)
                else "F" if draw.random() < self.frozen
                else "H"
                for column in range(self.size)
            )
            for row in range(self.size)
        ]  # fmt: skip


def way(lake: Sequence[str], start: tuple[int, int] = (0, 0)) -> list[str] | None:
    """Return the directions of a shortest way from ``start`` to the goal, around the holes; None: there is none."""
    came: dict[tuple[int, int], tuple[tuple[int, int], str] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        place = waiting.popleft()
        if lake[place[0]][place[1]] == "G":
            return _back(came, place)
        for direction, (down, right) in STEPS.items():
            row, column = place[0] + down, place[1] + right
            inside = 0 <= row < len(lake) and 0 <= column < len(lake[0])
            if inside and lake[row][column] != "H" and (row, column) not in came:
                came[row, column] = (place, direction)
                waiting.append((row, column))
    return None


def _back(
    came: Mapping[tuple[int, int], tuple[tuple[int, int], str] | None], place: tuple[int, int]
) -> list[str]:
    directions: list[str] = []
    step = came[place]
    while step is not None:
        place, direction = step
        directions.append(direction)
        step = came[place]
    return directions[::-1]


def _split_of(lake: Sequence[str]) -> str:
    digest = hashlib.sha256("/".join(lake).encode()).digest()
    return "eval" if digest[0] % _EVAL_SHARE == 0 else "train"

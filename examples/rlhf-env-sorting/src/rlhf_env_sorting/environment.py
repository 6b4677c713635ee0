"""Digits in a row, of which the policy swaps two neighbors in each turn until they rise.

    environment   Sort 3 1 2 in 3 swaps at most. Say the place of the left one of two neighbors.
    policy        1
    environment   1 3 2
    policy        2                    sorted; the episode ends

An inversion is a pair of digits in the wrong order. A swap of neighbors changes their number by exactly one, so as many
swaps as there are inversions are needed, and swaps of falling neighbors are all that it takes (bubble sort).
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal

from pydantic import Field

from rlhf_core import Config
from rlhf_core.contracts import (
    Action,
    EnvironmentKind,
    EnvironmentManifest,
    Observation,
    StepResult,
    Task,
)

NUM_EVAL = 50
"""Rows of the split ``eval``."""


class SortingConfig(Config):
    """Options of ``sorting``."""

    length: int = Field(4, ge=3, le=10, description="number of digits, all different")
    moves: int | None = Field(
        None,
        ge=1,
        le=1_000,
        description="swaps of an episode; unset: as many as the worst order needs",
    )
    style: Literal["chat", "text"] = Field(
        "chat",
        description="chat: messages, for a model with a chat template; text: a few characters, for a tiny model",
    )
    no_move_reward: float = Field(
        -0.1, ge=-1.0, le=0.0, description="reward of an answer that names no place"
    )

    def most_inversions(self) -> int:
        """Return the inversions of the worst order."""
        return self.length * (self.length - 1) // 2


def inversions(digits: Sequence[int]) -> int:
    """Return the number of pairs of digits in the wrong order."""
    return sum(left > right for left, right in combinations(digits, 2))


def is_held_out(digits: Sequence[int]) -> bool:
    """Return whether a row is one of ``eval``: one of ten, by its checksum."""
    return zlib.crc32(bytes(digits)) % 10 == 0


class Sorting:
    """One episode. The last whole number in an answer is the place, from 1, of the left one of the neighbors."""

    manifest = EnvironmentManifest(
        kind=EnvironmentKind.MULTI_TURN,
        reward_range=(-1.6, 2.0),
        license="Apache-2.0",
        version="1",
    )

    def __init__(self, config: SortingConfig) -> None:
        self._config = config
        self._moves = config.moves or config.most_inversions()
        self._digits: list[int] = []
        self._used = 0
        self._at_start = 1

    def tasks(self, split: str) -> Iterator[Mapping[str, Any]]:
        """Return rows without end in ``train``, and 50 others in ``eval``; none is sorted already.

        Raises:
            KeyError: there is no such split.
        """
        if split == "train":
            return self._rows(split)
        if split == "eval":
            return self._held_out()
        raise KeyError(split)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Take the task's digits, or draw some, and show them."""
        given = task.row.get("digits")
        self._digits = self._draw(random.Random(seed)) if given is None else list(map(int, given))
        self._used = 0
        # A row of a data set may be sorted already.
        self._at_start = max(1, inversions(self._digits))
        shown = " ".join(map(str, self._digits))
        asked = (
            f"Sort {shown} in {self._moves} swaps at most. Say the place of the left one of two neighbors, 1 to "
            f"{len(self._digits) - 1}, and they are swapped."
        )
        return self._say(asked)

    async def step(self, action: Action) -> StepResult:
        """Swap, and reward the change in order, and the end of all inversions."""
        self._used += 1
        place = self._place(action.text if action.content is None else action.content)
        before = self._order()
        if place is not None:
            pair = slice(place - 1, place + 1)
            self._digits[pair] = self._digits[pair][::-1]
        left = inversions(self._digits)
        # A difference of states, so that swapping to and fro earns nothing.
        rewards = {"order": self._order() - before}
        if place is None:
            rewards["no_move"] = self._config.no_move_reward
        if left == 0:
            rewards["sorted"] = 1.0
        metrics = {
            "sorted": float(left == 0),
            "inversions": float(left),
            "moves": float(self._used),
        }
        done = left == 0 or self._used >= self._moves
        if left == 0:
            return StepResult(rewards=rewards, done=True, metrics=metrics)
        shown = " ".join(map(str, self._digits))
        said = shown if place is not None else f"a place from 1 to {len(self._digits) - 1}, please"
        hint = self._say(said, "" if place is not None else "!")
        return StepResult(observation=hint, rewards=rewards, done=done, metrics=metrics)

    def _order(self) -> float:
        """Return the share of the inversions at the start that are gone: 1 when sorted, never below -1."""
        return max(-1.0, 1.0 - inversions(self._digits) / self._at_start)

    async def oracle(self) -> str:
        """Return the first place at which the digits fall."""
        pairs = zip(self._digits, self._digits[1:], strict=False)
        return str(next(place for place, (left, right) in enumerate(pairs, 1) if left > right))

    async def close(self) -> None:
        """Do nothing, since the environment holds nothing."""

    def _rows(self, split: str) -> Iterator[Mapping[str, Any]]:
        draw = random.Random(f"sorting {split}")
        index = 0
        while True:
            digits = self._draw(draw)
            if is_held_out(digits) == (split == "eval"):
                yield {"key": f"{split}-{index}", "digits": "".join(map(str, digits))}
                index += 1

    def _held_out(self) -> Iterator[Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        for index, row in enumerate(self._rows("eval")):
            found.setdefault(row["digits"], row)
            # Of three digits there are hardly more than fifty such rows in all.
            if len(found) == NUM_EVAL or index > 100 * NUM_EVAL:
                return iter(found.values())
        raise AssertionError("the rows have no end")

    def _draw(self, draw: random.Random) -> list[int]:
        while True:
            digits = draw.sample(range(10), self._config.length)
            if inversions(digits):
                return digits

    def _place(self, text: str) -> int | None:
        """Return the last whole number of a text, if it is a place that has a right neighbor."""
        found = re.findall(r"-?\d+", text[-2_000:], flags=re.ASCII)
        if not found or len(found[-1]) > 10:
            return None
        place = int(found[-1])
        return place if 1 <= place < len(self._digits) else None

    def _say(self, chat: str, mark: str = "") -> Observation:
        if self._config.style == "text":
            return Observation(text=f"{mark}{''.join(map(str, self._digits))}:")
        return Observation(messages=({"role": "user", "content": chat},))

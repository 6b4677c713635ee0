"""The numbers game: an expression of given numbers that has a given value.

    environment   Using the numbers 3, 7, 25, each at most once, with + - * / and parentheses, write an expression ...
    policy        <answer>(25 - 7) * 3</answer>        correct 1, format 0.1; the episode ends

With ``attempts`` over 1 a wrong answer is told its value, and may be replaced. Expressions are read by a parser of
their own (``expressions``), never by Python.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
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

from .expressions import Expression, parse
from .problems import SPLITS, Problems

_OPEN, _CLOSE = "<answer>", "</answer>"


class CountdownConfig(Config):
    """Options of ``countdown``."""

    numbers: int = Field(4, ge=2, le=6, description="how many numbers a problem has")
    largest: int = Field(25, ge=2, le=1_000, description="largest number")
    largest_target: int = Field(100, ge=2, le=100_000, description="largest target")
    attempts: int = Field(1, ge=1, le=100, description="number of answers in an episode")
    all_numbers: bool = Field(False, description="require that an answer uses every number")
    format_reward: float = Field(
        0.1,
        ge=0.0,
        le=0.5,
        description="reward of an answer that uses only given numbers, each at most once; the target earns 1 more",
    )
    style: Literal["chat", "text"] = Field(
        "chat",
        description="chat: messages, and the answer in <answer></answer>; text: a few characters, for a tiny model",
    )


class Countdown:
    """One episode."""

    manifest = EnvironmentManifest(
        kind=EnvironmentKind.SINGLE_TURN,
        reward_range=(0.0, 1.1),
        license="Apache-2.0",
        version="1",
    )

    def __init__(self, config: CountdownConfig) -> None:
        self._config = config
        self._numbers: list[int] = []
        self._target = 0
        self._solution = ""
        self._used = 0

    def tasks(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return problems, a million in ``train`` and 256 others in ``eval``.

        Raises:
            KeyError: there is no such split.
        """
        if split not in SPLITS:
            raise KeyError(split)
        config = self._config
        return Problems(
            split=split,
            size=config.numbers,
            largest=config.largest,
            largest_target=config.largest_target,
        )

    async def reset(self, task: Task, seed: int) -> Observation:
        """Take the task's problem, or one by the seed, and return the question."""
        row = task.row if "numbers" in task.row else self.tasks("train")[seed % SPLITS["train"]]
        self._numbers, self._target = list(row["numbers"]), int(row["target"])
        self._solution = str(row.get("solution", ""))
        self._used = 0
        given = ", ".join(map(str, self._numbers))
        how_often = "each exactly once" if self._config.all_numbers else "each at most once"
        return self._say(
            f"Using the numbers {given}, {how_often}, with + - * / and parentheses, write an expression whose value is "
            f"{self._target}. Give the expression in {_OPEN}{_CLOSE}.",
            f"{' '.join(map(str, self._numbers))}>{self._target}:",
        )

    async def step(self, action: Action) -> StepResult:
        """Judge an answer."""
        self._used += 1
        last = self._used >= self._config.attempts
        try:
            expression = self._checked(action.text if action.content is None else action.content)
        except ValueError as error:
            told = self._say(f"That is no answer: {error}. Try again.", "!")
            return StepResult(observation=told, done=last, metrics=self._metrics(right=False))
        rewards = {"format": self._config.format_reward}
        if expression.value == self._target:
            return StepResult(
                rewards=rewards | {"correct": 1.0}, done=True, metrics=self._metrics(right=True)
            )
        told = self._say(f"That is {_shown(expression.value)}, not {self._target}. Try again.", "!")
        return StepResult(
            observation=told,
            rewards=rewards if last else {},
            done=last,
            metrics=self._metrics(right=False),
        )

    async def oracle(self) -> str:
        """Return the solution that the problem was made from."""
        return (
            self._solution if self._config.style == "text" else f"{_OPEN}{self._solution}{_CLOSE}"
        )

    async def close(self) -> None:
        """Do nothing, since the environment holds nothing."""

    def _checked(self, text: str) -> Expression:
        """Return the answer's expression."""
        expression = parse(_answer(text) if self._config.style == "chat" else text)
        too_many = Counter(expression.numbers) - Counter(self._numbers)
        if too_many:
            raise ValueError(f"{next(iter(too_many))} is not left among the numbers")
        if self._config.all_numbers and len(expression.numbers) < len(self._numbers):
            raise ValueError("not every number is used")
        return expression

    def _metrics(self, *, right: bool) -> dict[str, float]:
        return {"attempts": float(self._used), "solved": float(right)}

    def _say(self, chat: str, text: str) -> Observation:
        if self._config.style == "text":
            return Observation(text=text)
        return Observation(messages=({"role": "user", "content": chat},))


def _answer(text: str) -> str:
    """Return what stands in the last pair of marks."""
    before, mark, _ = text.rpartition(_CLOSE)
    _, opened, answer = before.rpartition(_OPEN)
    if not (mark and opened):
        raise ValueError(f"expected it in {_OPEN}{_CLOSE}")
    return answer


def _shown(value: Fraction) -> str:
    return str(value) if len(str(value)) <= 20 else "far too large"

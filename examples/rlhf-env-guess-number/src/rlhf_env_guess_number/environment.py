"""A secret number, and a hint after each wrong guess.

    environment   Guess the number from 0 to 9. You have 4 guesses.
    policy        4
    environment   higher
    policy        7                    reward 1; the episode ends

With four guesses halving finds one of up to 15 numbers, whichever it is; guessing without the hints finds one of ten in
four of ten episodes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from rlhf_core import Config
from rlhf_core.contracts import (
    Action,
    EnvironmentKind,
    EnvironmentManifest,
    Observation,
    StepResult,
    Task,
)


class GuessNumberConfig(Config):
    """Options of ``guess_number``."""

    low: int = Field(0, ge=-1_000_000, le=1_000_000, description="smallest number")
    high: int = Field(99, ge=-1_000_000, le=1_000_000, description="largest number")
    guesses: int = Field(7, ge=1, le=1_000, description="number of guesses")
    style: Literal["chat", "text"] = Field(
        "chat",
        description="chat: messages, for a model with a chat template; text: a few characters, for a tiny model",
    )
    no_number_reward: float = Field(
        -0.1, ge=-1.0, le=0.0, description="reward of an answer without a number within the bounds"
    )

    @model_validator(mode="after")
    def _ordered(self) -> GuessNumberConfig:
        if self.low >= self.high:
            raise ValueError(f"low is {self.low} and high {self.high}; expected low below high")
        return self


class GuessNumber:
    """One episode. The last whole number in an answer is the guess."""

    manifest = EnvironmentManifest(
        kind=EnvironmentKind.MULTI_TURN,
        reward_range=(-0.7, 1.0),
        license="Apache-2.0",
        version="1",
    )

    def __init__(self, config: GuessNumberConfig) -> None:
        self._config = config
        self._secret = 0
        self._used = 0

    def tasks(self, split: str) -> Iterator[Mapping[str, Any]]:
        """Return secrets without end in ``train``, and each number once in ``eval``.

        Raises:
            KeyError: there is no such split.
        """
        if split == "eval":
            return (
                self._row(f"eval-{n}", n) for n in range(self._config.low, self._config.high + 1)
            )
        if split == "train":
            return self._drawn()
        raise KeyError(split)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Take the task's secret, or draw one, and return the question."""
        secret = task.row.get("secret")
        self._secret = self._draw(random.Random(seed)) if secret is None else int(secret)
        self._used = 0
        low, high, guesses = self._config.low, self._config.high, self._config.guesses
        return self._say(f"Guess the number from {low} to {high}. You have {guesses} guesses.", "?")

    async def step(self, action: Action) -> StepResult:
        """Judge a guess."""
        self._used += 1
        last = self._used >= self._config.guesses
        guess = self._guess(action.text if action.content is None else action.content)
        metrics = {"guesses": float(self._used), "found": float(guess == self._secret)}
        if guess == self._secret:
            return StepResult(rewards={"found": 1.0}, done=True, metrics=metrics)
        if guess is None:
            hint = self._say(
                f"a number from {self._config.low} to {self._config.high}, please", "!"
            )
            rewards = {"no_number": self._config.no_number_reward}
            return StepResult(observation=hint, rewards=rewards, done=last, metrics=metrics)
        hint = self._say("higher", ">") if guess < self._secret else self._say("lower", "<")
        return StepResult(observation=hint, done=last, metrics=metrics)

    async def oracle(self) -> str:
        """Return the number."""
        return str(self._secret)

    async def close(self) -> None:
        """Do nothing, since the environment holds nothing."""

    def _drawn(self) -> Iterator[Mapping[str, Any]]:
        draw = random.Random("guess_number train")
        index = 0
        while True:
            yield self._row(f"train-{index}", self._draw(draw))
            index += 1

    def _draw(self, draw: random.Random) -> int:
        return draw.randint(self._config.low, self._config.high)

    def _row(self, key: str, secret: int) -> Mapping[str, Any]:
        return {"key": key, "secret": secret}

    def _guess(self, text: str) -> int | None:
        """Return the last whole number of a text, if it is within the bounds."""
        # Longer numbers are out of bounds in any case, and slow to read.
        found = re.findall(r"-?\d+", text[-2_000:], flags=re.ASCII)
        if not found or len(found[-1]) > 10:
            return None
        guess = int(found[-1])
        return guess if self._config.low <= guess <= self._config.high else None

    def _say(self, chat: str, text: str) -> Observation:
        if self._config.style == "text":
            return Observation(text=text)
        return Observation(messages=({"role": "user", "content": chat},))

"""A toy environment for credit: in each turn a digit is shown and has to be echoed, and rewards come by turn or late.

    environment  4=
    policy       4                               reward 1 / num_turns
    environment  7=
    policy       2                               0.1 / num_turns for another digit, 0 else
    ...

With ``credit = "end"`` the same rewards are paid all together on the last turn, so that nobody can tell from them which
turn earned what. The digits are a function of the seed alone. The environment needs no data.
"""

from __future__ import annotations

import numpy as np

from rlhf_core.contracts import Action, Observation, StepResult, Task

from .config import EchoDigitsConfig


class EchoDigits:
    """An episode of ``num_turns`` turns. Only a turn's first character that is not white space counts."""

    def __init__(self, config: EchoDigitsConfig) -> None:
        self._config = config
        self._digits: list[int] = []
        self._earned = 0.0
        self._num_right = 0

    async def reset(self, task: Task, seed: int) -> Observation:
        """Draw the digits, and show the first one."""
        draw = np.random.Generator(np.random.Philox(seed))
        config = self._config
        self._digits = draw.integers(config.num_digits, size=config.num_turns).tolist()
        return Observation(text=f"{self._digits[0]}=")

    async def step(self, action: Action) -> StepResult:
        """Judge one turn, and show the next digit."""
        config, turn = self._config, action.turn
        written = action.text.strip()[:1]
        right = written == str(self._digits[turn])
        self._num_right += right
        is_digit = written.isascii() and written.isdigit()
        earned = (1.0 if right else 0.1 * is_digit) / config.num_turns
        self._earned += earned
        done = turn == config.num_turns - 1
        if config.credit == "end":
            earned = self._earned if done else 0.0
        return StepResult(
            observation=Observation() if done else Observation(text=f"{self._digits[turn + 1]}="),
            reward=earned,
            done=done,
            metrics={"right": self._num_right / config.num_turns},
        )

    async def close(self) -> None:
        """Do nothing, since the environment holds nothing."""

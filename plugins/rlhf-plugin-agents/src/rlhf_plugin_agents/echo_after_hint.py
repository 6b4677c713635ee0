"""A toy environment that one turn cannot solve: the environment shows the right answer only after the first turn.

    environment  ?          (only if the task has no prompt)
    policy       anything                        reward 0
    environment  hint:3=
    policy       3                               reward 1; 0.1 for another digit, 0 else; done

The hint is a function of the seed alone. With ``offset`` the answer is (hint + offset) modulo ``num_digits``. The
environment needs no data: the run's tasks may be empty (no row, no prompt). With data, the task's own prompt comes
before the first turn, and the hint is drawn in the same way.
"""

from __future__ import annotations

import numpy as np

from rlhf_core.contracts import Action, EnvironmentManifest, Observation, StepResult, Task

from .config import EchoAfterHintConfig


class EchoAfterHint:
    """An episode of two turns. Only the second turn's first character that is not white space counts."""

    manifest = EnvironmentManifest(reward_range=(0.0, 1.0), version="1")

    def __init__(self, config: EchoAfterHintConfig) -> None:
        self._config = config
        self._hint = 0
        self._shown = False

    async def reset(self, task: Task, seed: int) -> Observation:
        """Draw the hint, and return the first observation: the task's prompt, or a question mark without one."""
        draw = np.random.Generator(np.random.Philox(seed))
        self._hint = int(draw.integers(self._config.num_digits))
        self._shown = False
        return Observation() if task.prompt_ids else Observation(text="?")

    async def step(self, action: Action) -> StepResult:
        """Show the hint after the first turn, and reward the answer after the second."""
        if action.turn == 0:
            self._shown = True
            return StepResult(observation=Observation(text=f"hint:{self._hint}="))
        written = action.text.strip()[:1]
        right = written == self._answer
        is_digit = written.isascii() and written.isdigit()
        reward = 1.0 if right else self._config.wrong_digit_reward * is_digit
        return StepResult(reward=reward, done=True, metrics={"right": float(right)})

    async def oracle(self) -> str:
        """Return the digit, once the hint was shown."""
        return self._answer if self._shown else "?"

    @property
    def _answer(self) -> str:
        return str((self._hint + self._config.offset) % self._config.num_digits)

    async def close(self) -> None:
        """Do nothing, since the environment holds nothing."""

"""Gymnasium's FrozenLake-v1 as a conversation: a map of letters, and a direction in each answer.

    environment   ... P is you, G the goal, H a hole, S and F are ice ...
                  PFFF
                  FHFH
                  FFFH
                  HFFG
    policy        I go <move>down</move>
    environment   SFFF ...

With ``style`` text the map is a line, ``PFFF/FHFH/FFFH/HFFG:``, and an answer is the first letter of a direction.

The rules, the goal's reward and the slipping are Gymnasium's. The randomness of slipping comes from the episode's seed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from rlhf_core.contracts import (
    Action,
    EnvironmentKind,
    EnvironmentManifest,
    Observation,
    StepResult,
    Task,
)

from .config import FrozenLakeConfig
from .lakes import SPLITS, STEPS, Lakes, way

_DIRECTIONS = list(STEPS)
_BY_LETTER = {direction[0]: direction for direction in _DIRECTIONS}
_MOVE = re.compile(rf"<move>\s*({'|'.join(_DIRECTIONS)})\s*</move>", flags=re.IGNORECASE)


class FrozenLake:
    """One episode. The last ``<move>`` of an answer counts; in an answer of one word, the word does."""

    manifest = EnvironmentManifest(
        kind=EnvironmentKind.MULTI_TURN,
        reward_range=(-1.0, 1.0),
        license="Apache-2.0",
        version="1",
    )

    def __init__(self, config: FrozenLakeConfig) -> None:
        self._config = config
        self._lake: list[str] = []
        self._game: gymnasium.Env[Any, Any] | None = None
        self._place = 0
        self._moves = 0

    def tasks(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return lakes, a million in ``train`` and 128 others in ``eval``.

        Raises:
            KeyError: there is no such split.
        """
        if split not in SPLITS:
            raise KeyError(split)
        return Lakes(split=split, size=self._config.size, frozen=self._config.frozen)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Take the task's lake, or one by the seed, and return the map."""
        row = task.row if "lake" in task.row else self.tasks("train")[seed % SPLITS["train"]]
        self._lake = list(row["lake"])
        self._game = gymnasium.make(
            "FrozenLake-v1",
            desc=self._lake,
            is_slippery=self._config.slippery,
            max_episode_steps=self._config.moves + 1,
        )
        place, _ = self._game.reset(seed=seed % 2**31)
        self._place, self._moves = int(place), 0
        slips = " The ice is slippery: a move may go to the side." if self._config.slippery else ""
        return self._say(
            "Cross the lake. P is you, G the goal, H a hole; S and F are ice. Answer with a direction, left, down, "
            f"right or up, as <move>down</move>. You have {self._config.moves} moves.{slips}\n{self._map()}",
            self._line(),
        )

    async def step(self, action: Action) -> StepResult:
        """Make a move. An answer without a direction is a move that stays."""
        assert self._game is not None
        self._moves += 1
        last = self._moves >= self._config.moves
        direction = self._direction(action.text if action.content is None else action.content)
        if direction is None:
            told = self._say("Answer with <move>left</move>, down, right or up.", "?:")
            rewards = {"no_move": self._config.no_move_reward}
            return StepResult(
                observation=told, rewards=rewards, done=last, metrics=self._metrics(goal=False)
            )
        place, reward, terminated, _, _ = self._game.step(_DIRECTIONS.index(direction))
        self._place = int(place)
        return StepResult(
            observation=self._shown(),
            rewards={"goal": float(reward)},
            done=terminated or last,
            metrics=self._metrics(goal=float(reward) > 0, fell=terminated and not reward),
        )

    async def oracle(self) -> str:
        """Return a move on a shortest way from here, as if nobody slipped."""
        moves = way(self._lake, self._row_and_column())
        assert moves
        if self._config.style == "text":
            return moves[0][0]
        return f"So: <move>{moves[0]}</move>"

    async def close(self) -> None:
        """Close the game."""
        if self._game is not None:
            self._game.close()
            self._game = None

    def _direction(self, text: str) -> str | None:
        """Return the direction of an answer, or None."""
        if self._config.style == "text":
            return _BY_LETTER.get(text.strip()[:1])
        marked = _MOVE.findall(text[-2_000:])
        word = marked[-1] if marked else text.strip()
        return word.lower() if word.lower() in _DIRECTIONS else None

    def _shown(self) -> Observation:
        """Return what is told after a move."""
        if self._config.show_map:
            return self._say(self._map(), self._line())
        row, column = self._row_and_column()
        place = f"You are in row {row + 1}, column {column + 1}."
        return self._say(place, f"{row + 1},{column + 1}:")

    def _say(self, chat: str, text: str) -> Observation:
        if self._config.style == "text":
            return Observation(text=text)
        return Observation(messages=({"role": "user", "content": chat},))

    def _line(self) -> str:
        return self._map().replace("\n", "/") + ":"

    def _row_and_column(self) -> tuple[int, int]:
        return divmod(self._place, len(self._lake[0]))

    def _map(self) -> str:
        row, column = self._row_and_column()
        lines = list(self._lake)
        lines[row] = lines[row][:column] + "P" + lines[row][column + 1 :]
        return "\n".join(lines)

    def _metrics(self, *, goal: bool, fell: bool = False) -> dict[str, float]:
        return {"moves": float(self._moves), "goal": float(goal), "fell": float(fell)}

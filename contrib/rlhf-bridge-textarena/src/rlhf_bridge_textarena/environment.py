"""A game of TextArena as a conversation: what the game shows the player, and a move in each answer.

The policy is player 0. Other players draw one of the moves in ``opponents`` by the episode's seed; who plays against a
model uses an executor with several agents. TextArena draws from Python's global random generator, which the game gets
as the episode left it at each of its steps, so that episodes at the same time do not disturb each other.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import textarena

from rlhf_core import ConfigError
from rlhf_core.contracts import Action, Observation, StepResult, Task

from .config import TextArenaConfig

ResultT = TypeVar("ResultT")
_MAX_FOREIGN_MOVES = 1000


class TextArenaBridge:
    """One game.

    Raises:
        ConfigError: TextArena has no such game, or its options do not fit.
    """

    def __init__(self, config: TextArenaConfig) -> None:
        if (config.num_players > 1) != bool(config.opponents):
            raise ConfigError(
                f"num_players = {config.num_players} with opponents = {list(config.opponents)}: expected moves of the "
                "other players in opponents with more than 1 player, and with no other number",
                code="config/out-of-range",
            )
        self._config = config
        self._state: Any = None
        self._draw = random.Random(0)
        self._turns = 0
        self._game = self._kept(lambda: _made(config))

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin, and return what the game shows."""
        self._draw = random.Random(seed)
        self._state = random.Random(seed).getstate()
        self._kept(
            lambda: self._game.reset(num_players=self._config.num_players, seed=seed % 2**31)
        )
        ended = self._play_others()
        if ended:
            raise RuntimeError(f"{self._config.game} ended before the policy's first turn")
        return self._seen()

    async def step(self, action: Action) -> StepResult:
        """Make the policy's move, and those of the others until it is the policy's turn again."""
        self._turns += 1
        text = action.text if action.content is None else action.content
        done, _ = self._kept(lambda: self._game.step(action=text))
        done = bool(done) or self._play_others()
        metrics = {"turns": float(self._turns), "ended": float(done)}
        if not done and self._turns < self._config.max_turns:
            return StepResult(observation=self._seen(), metrics=metrics)
        reward = self._config.unfinished_reward
        if done:
            rewards, _ = self._kept(self._game.close)
            reward = float((rewards or {}).get(0, 0.0))
        kept = max(reward, 0.0) if self._config.wins_only else reward
        return StepResult(
            rewards={"game": kept}, done=True, metrics={**metrics, "won": float(reward > 0)}
        )

    async def close(self) -> None:
        """Do nothing, since a game holds nothing."""

    def _play_others(self) -> bool:
        for _ in range(_MAX_FOREIGN_MOVES):
            if self._game.state.done:
                return True
            if self._game.state.current_player_id == 0:
                return False
            self._kept(self._game.get_observation)
            move = self._draw.choice(self._config.opponents)
            done, _ = self._kept(partial(self._game.step, action=move))
            if done:
                return True
        raise RuntimeError(
            f"{self._config.game}: the other players made {_MAX_FOREIGN_MOVES} moves without the policy's turn; "
            "expected moves in opponents that the game takes"
        )

    def _seen(self) -> Observation:
        _, shown = self._kept(self._game.get_observation)
        parts = shown if isinstance(shown, list) else [(0, shown, None)]
        text = "\n".join(str(part[1]).strip() for part in parts)
        return Observation(messages=({"role": "user", "content": text or "(nothing new)"},))

    def _kept(self, work: Callable[[], ResultT]) -> ResultT:
        """Return what ``work`` does with this game's state of the global random generator, which is then put back."""
        before = random.getstate()
        if self._state is not None:
            random.setstate(self._state)
        try:
            return work()
        finally:
            self._state = random.getstate()
            random.setstate(before)


def _made(config: TextArenaConfig) -> Any:
    try:
        made = textarena.make(env_id=config.game, **config.kwargs)
    except Exception as error:  # Games raise anything where data or arguments are missing.
        raise ConfigError(
            f"expected a game of TextArena in game, and its arguments in kwargs; {config.game!r} gave "
            f"{type(error).__name__}: {error}",
            code="environment/not-loadable",
        ) from error
    # Games are registered with wrappers that repeat the whole history, which the conversation has anyway.
    while isinstance(made, textarena.core.Wrapper):
        made = made.env
    return made

"""Budgets of an episode: tokens and seconds, for each turn and for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

from rlhf_core import RolloutError
from rlhf_core.contracts import SamplingParams, TurnSampling, Uid

from .config import MultiTurnConfig

ResultT = TypeVar("ResultT")


class OutOfTime(RolloutError):
    """The seconds of a turn or of the episode are used up."""

    reason = "timeout"
    """Word by which episodes are counted that are left out because of it."""


class Clock:
    """The seconds of one episode, from now on. Without budgets it sets no timer."""

    def __init__(self, uid: Uid, config: MultiTurnConfig) -> None:
        self._uid = uid
        self._turn_s = config.turn_timeout_s
        self._episode_s = config.episode_timeout_s
        self._turn_ends: float | None = None
        self._episode_ends = None if self._episode_s is None else self._now() + self._episode_s

    def begin_turn(self) -> None:
        """Give the next turn its seconds."""
        if self._turn_s is not None:
            self._turn_ends = self._now() + self._turn_s

    async def bounded(self, work: Awaitable[ResultT]) -> ResultT:
        """Return what ``work`` returns; it is cancelled when the turn's or the episode's seconds are used up.

        Raises:
            OutOfTime: they were.
        """
        ends = [moment for moment in (self._turn_ends, self._episode_ends) if moment is not None]
        if not ends:
            return await work
        limit = asyncio.timeout_at(min(ends))
        try:
            async with limit:
                return await work
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise OutOfTime(
                f"{self._uid}: the policy had no turn within {self._which(min(ends))}; raise it, or leave out such "
                "episodes with --rollout.multi_turn.on_error drop"
            ) from error

    def _which(self, end: float) -> str:
        if end == self._episode_ends:
            return f"{self._episode_s:g} s (--rollout.multi_turn.episode_timeout_s)"
        return f"{self._turn_s:g} s (--rollout.multi_turn.turn_timeout_s)"

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def limited(
    sampling: SamplingParams, room: int, turn: TurnSampling | None = None
) -> SamplingParams:
    """Return the sampling parameters of a turn with at most ``room`` new tokens, where ``room`` is at least 1.

    Args:
        turn: the environment's wishes for this turn; it may ask for fewer tokens, not for more.
    """
    most = min(sampling.max_new_tokens, room)
    stop = sampling.stop
    if turn is not None:
        most = most if turn.max_new_tokens is None else min(most, turn.max_new_tokens)
        stop = stop if turn.stop is None else turn.stop
    fewest = min(sampling.min_new_tokens, most)
    return replace(sampling, max_new_tokens=most, min_new_tokens=fewest, stop=stop)

"""The least that an episode of a game can earn, so that no answer without an action earns more than playing."""

from __future__ import annotations

from typing import Any

import gymnasium

from rlhf_core import ConfigError

from .config import GymnasiumConfig

_OF_A_STEP = {"CartPole": 0.0, "MountainCar": -1.0, "Acrobot": -1.0}
"""Least reward of a step, by the name of the game without its version, in Gymnasium 1.4's default arguments."""
_OF_AN_EPISODE = {"Blackjack": -1.0}
"""Least reward of an episode, whatever the number of its steps."""


def least_reward(game: gymnasium.Env[Any, Any], config: GymnasiumConfig) -> float:
    """Return a number that no episode of at most ``max_steps`` steps earns less than.

    A game of tables (``P``: the toy texts) has all of its rewards written down; of a few others they are known.

    Raises:
        ConfigError: neither the options nor the game say it.
    """
    if config.least_reward is not None:
        return config.least_reward
    name = config.id.rpartition("/")[2].rpartition("-v")[0]
    if name in _OF_AN_EPISODE and not config.kwargs:
        return _OF_AN_EPISODE[name]
    limit = game.spec.max_episode_steps if game.spec is not None else None
    steps = config.max_steps if limit is None else min(limit, config.max_steps)
    table = getattr(game.unwrapped, "P", None)
    if isinstance(table, dict):
        rewards = [move[2] for moves in table.values() for some in moves.values() for move in some]
        return steps * min(0.0, float(min(rewards)))
    if name in _OF_A_STEP and not config.kwargs:
        return steps * _OF_A_STEP[name]
    raise ConfigError(
        f"{config.id}: expected the least that an episode can earn, to which an answer without an action brings it; "
        "this game does not say it. Set --env.gymnasium.least_reward, or have such answers play an action: "
        "--env.gymnasium.without_action noop --env.gymnasium.noop WORD.",
        code="environment/no-least-reward",
    )

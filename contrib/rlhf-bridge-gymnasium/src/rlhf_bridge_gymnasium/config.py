"""Options of the bridge. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from pydantic import Field, JsonValue

from rlhf_core import Config


class GymnasiumConfig(Config):
    """Options of ``gymnasium``."""

    id: str = Field(
        min_length=1, description="name of an environment that is registered, such as FrozenLake-v1"
    )
    kwargs: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="arguments of gymnasium.make: --env.gymnasium.kwargs.KEY VALUE",
    )
    actions: tuple[str, ...] = Field(
        (), description="word for each action, in the order of their numbers; unset: the numbers"
    )
    rules: str = Field("", description="text before the first observation")
    max_steps: int = Field(
        100, ge=1, le=100_000, description="largest number of actions in an episode"
    )
    no_action_reward: float = Field(
        -0.1, ge=-1e6, le=0.0, description="reward of an answer that names no action"
    )

"""Options of the bridge. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rlhf_core import Config
from rlhf_core.typed_table import TypedTable


class GymnasiumConfig(Config):
    """Options of ``gymnasium``."""

    id: str = Field(
        min_length=1, description="name of an environment that is registered, such as FrozenLake-v1"
    )
    kwargs: TypedTable = Field(
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
    without_action: Literal["end", "noop"] = Field(
        "end",
        description="an answer that names no action: end: ends the episode, whose rewards add up to least_reward; "
        "noop: plays the action noop",
    )
    least_reward: float | None = Field(
        None,
        ge=-1e9,
        le=1e9,
        description="least that an episode of the game can earn; unset: known from the game, for games that say it",
    )
    noop: str = Field("", description="noop: word of the action that an answer without one plays")
    no_action_reward: float = Field(
        -0.1,
        ge=-1e6,
        le=0.0,
        description="reward of an answer that names no action, on top of what without_action earns",
    )

    @model_validator(mode="after")
    def _noop_is_named(self) -> GymnasiumConfig:
        if bool(self.noop) != (self.without_action == "noop"):
            raise ValueError(
                f"without_action is {self.without_action!r} and noop {self.noop!r}: expected the word of an action in "
                "noop with without_action = noop, and none without"
            )
        return self

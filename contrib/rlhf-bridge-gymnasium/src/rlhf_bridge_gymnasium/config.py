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
        description="what an answer that names no action does. end: it ends the episode, whose rewards then add up "
        "to least_reward; noop: it plays the action noop",
    )
    least_reward: float | None = Field(
        None,
        ge=-1e9,
        le=1e9,
        description="least reward that an episode of the game can earn; unset: the bridge knows it for some games, "
        "and asks for it for others",
    )
    noop: str = Field(
        "",
        description="word of the action that an answer without an action plays, with without_action = noop",
    )
    no_action_reward: float = Field(
        -0.1,
        ge=-1e6,
        le=0.0,
        description="reward that is added for an answer that names no action",
    )

    @model_validator(mode="after")
    def _noop_is_named(self) -> GymnasiumConfig:
        if bool(self.noop) != (self.without_action == "noop"):
            raise ValueError(
                f"without_action is {self.without_action!r} and noop {self.noop!r}: expected the word of an action in "
                "noop with without_action = noop, and none without"
            )
        return self

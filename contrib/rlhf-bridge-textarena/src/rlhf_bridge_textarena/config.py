"""Options of the bridge. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Config
from rlhf_core.typed_table import TypedTable


class TextArenaConfig(Config):
    """Options of ``textarena``."""

    game: str = Field(
        min_length=1, description="name of a game, such as GuessTheNumber-v0 or TicTacToe-v0"
    )
    kwargs: TypedTable = Field(
        default_factory=dict,
        description="arguments of textarena.make: --env.textarena.kwargs.KEY VALUE",
    )
    opponents: tuple[str, ...] = Field(
        (),
        description="moves of the other players, drawn at random by the episode's seed; unset: the policy plays alone",
    )
    num_players: int = Field(
        1,
        ge=1,
        le=15,
        description="number of players of the game, of which the policy is the first; 1: it plays alone",
    )
    max_turns: int = Field(100, ge=1, le=10_000, description="largest number of the policy's turns")
    unfinished_reward: float = Field(
        -1.0,
        ge=-1e6,
        le=1e6,
        description="reward of a game that max_turns ends; -1, the reward of a lost game, makes stalling useless",
    )
    wins_only: bool = Field(False, description="count the game's rewards below 0 as 0")

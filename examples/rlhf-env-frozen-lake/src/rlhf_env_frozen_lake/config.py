"""Options of the environment. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config


class FrozenLakeConfig(Config):
    """Options of ``frozen_lake``."""

    size: int = Field(4, ge=2, le=20, description="rows and columns of the lake")
    frozen: float = Field(
        0.8, ge=0.2, le=1.0, description="probability that a place is frozen; the others are holes"
    )
    slippery: bool = Field(False, description="slip to the side in two of three moves")
    moves: int = Field(20, ge=1, le=1_000, description="number of moves in an episode")
    show_map: bool = Field(
        True,
        description="show the whole lake after each move; false: show it only at the beginning, and then the place",
    )
    style: Literal["chat", "text"] = Field(
        "chat",
        description="chat: messages, and a direction in <move></move>; text: the map in a line, and a letter (l, d, r "
        "or u), for a tiny model",
    )
    no_move_reward: float = Field(
        -0.05, ge=-1.0, le=0.0, description="reward of an answer that names no direction"
    )

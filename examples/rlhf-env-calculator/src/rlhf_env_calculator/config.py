"""Options of the environment. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config

Operator = Literal["+", "-", "*"]


class CalculatorConfig(Config):
    """Options of ``calculator``."""

    digits: int = Field(4, ge=1, le=12, description="most digits of a number")
    numbers: int = Field(
        2, ge=2, le=8, description="numbers in a problem; each beyond the first needs a call"
    )
    operators: tuple[Operator, ...] = Field(
        ("+", "-", "*"), min_length=1, description="operators that problems have"
    )
    calls: int = Field(8, ge=1, le=100, description="number of calls in an episode")
    must_call: bool = Field(
        True, description="pay an answer, even a right one, only after a call that succeeded"
    )
    call_reward: float = Field(
        0.1, ge=0.0, le=0.5, description="reward of the first turn with a call that succeeds"
    )
    style: Literal["chat", "text"] = Field(
        "chat", description="chat: a sentence; text: a few characters, for a tiny model"
    )

"""Options of executors and environments. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Config


class SingleTurnConfig(Config):
    """Options of ``single_turn``: none, since the options of sampling are in ``rollout``."""


class MultiTurnConfig(Config):
    """Options of ``multi_turn``."""

    max_turns: int = Field(
        8, ge=1, le=10_000, description="number of the policy's turns after which an episode ends"
    )
    environment_timeout_s: float = Field(
        300.0, gt=0.0, description="seconds for each reset, step and close of an async environment"
    )


class EchoAfterHintConfig(Config):
    """Options of ``echo_after_hint``."""

    num_digits: int = Field(
        4, ge=2, le=10, description="number of possible hints, the digits from 0 to num_digits - 1"
    )
    offset: int = Field(
        0, ge=0, le=9, description="number that is added to the hint, modulo num_digits"
    )
    wrong_digit_reward: float = Field(
        0.1, ge=0.0, lt=1.0, description="reward of a wrong digit, which eases the start"
    )

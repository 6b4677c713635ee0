"""Options of executors and environments. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Config


class SingleTurnConfig(Config):
    """``single_turn`` has no options of its own; sampling is in ``rollout``."""


class MultiTurnConfig(Config):
    """Options of ``multi_turn``."""

    max_turns: int = Field(
        8, ge=1, le=10_000, description="the episode ends after this many turns of the policy"
    )
    environment_timeout_s: float = Field(
        300.0, gt=0.0, description="for each reset, step and close of an async environment"
    )


class EchoAfterHintConfig(Config):
    """Options of ``echo_after_hint``."""

    num_digits: int = Field(
        4, ge=2, le=10, description="the hint is one of the digits from 0 to this minus one"
    )
    offset: int = Field(
        0, ge=0, le=9, description="the answer is the hint plus this, modulo num_digits"
    )
    wrong_digit_reward: float = Field(
        0.1, ge=0.0, lt=1.0, description="for another digit than the right one; eases the start"
    )

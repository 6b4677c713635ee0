"""Limits of calls, as options. Imports nothing heavy."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Config


class ToolLimits(Config):
    """Limits of the calls of one episode. What exceeds a limit is answered with an error for the policy."""

    timeout_s: float = Field(
        10.0,
        gt=0,
        le=86_400,
        description="seconds for one call, if the tool has no deadline of its own",
    )
    max_calls_per_turn: int = Field(
        8, ge=1, le=10_000, description="largest number of calls in one turn of the policy"
    )
    max_calls: int = Field(
        64, ge=1, le=1_000_000, description="largest number of calls in one episode"
    )
    max_result_chars: int = Field(
        8_000,
        ge=1,
        le=10_000_000,
        description="largest number of characters of a result; the rest is cut off, and the policy is told",
    )
    max_episode_chars: int = Field(
        200_000,
        ge=1,
        le=1_000_000_000,
        description="largest number of characters of all results of an episode; further calls are refused",
    )
    max_depth: int = Field(
        4,
        ge=1,
        le=100,
        description="largest depth of tools that call tools; a call of the policy is 1",
    )
    parallel: bool = Field(
        False,
        description="run the calls of one turn at the same time; false: one after the other. Results keep the order "
        "of the calls",
    )

"""Options of the bridge. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Config
from rlhf_core.typed_table import TypedTable


class ReasoningGymConfig(Config):
    """Options of ``reasoning_gym``."""

    dataset: str = Field(
        min_length=1, description="generator of reasoning-gym, such as chain_sum or leg_counting"
    )
    size: int = Field(10_000, ge=1, le=100_000_000, description="number of training tasks")
    eval_size: int = Field(128, ge=1, le=1_000_000, description="number of evaluation tasks")
    seed: int = Field(
        0,
        ge=0,
        lt=2**31 - 1,
        description="seed of the tasks; whatever it is, no question is in both splits",
    )
    kwargs: TypedTable = Field(
        default_factory=dict,
        description="further arguments of the generator: --env.reasoning_gym.kwargs.KEY VALUE",
    )
    prefix: str = Field("", description="text before each question")
    tag: str = Field(
        "answer",
        pattern=r"[A-Za-z][A-Za-z0-9_]*|",
        description="tag around the answer that is scored, as in <answer>7</answer>; empty: the whole text is scored",
    )

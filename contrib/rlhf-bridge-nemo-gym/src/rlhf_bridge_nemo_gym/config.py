"""Options of the bridge. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config


class NemoGymConfig(Config):
    """Options of ``nemo_gym``."""

    url: str = Field(min_length=1, description="address of the resources server: http://HOST:PORT")
    train: tuple[str, ...] = Field(
        (), description="JSONL files in NeMo Gym's format, with the tasks to train on"
    )
    eval: tuple[str, ...] = Field(
        (), description="JSONL files in the same format, with the tasks to evaluate on"
    )
    protocol: Literal["auto", "verify", "step"] = Field(
        "auto",
        description="protocol of the server: /seed_session and /verify, or /reset and /step; auto: the one that its "
        "OpenAPI description lists",
    )
    label: str = Field(
        "", description="name and version of the environment for messages, such as blackjack@1.2"
    )
    max_steps: int = Field(10, ge=1, le=10_000, description="largest number of the policy's turns")
    answer_s: float = Field(
        120.0, gt=0, allow_inf_nan=False, description="seconds for each answer of the server"
    )
    max_answer_mib: float = Field(
        16.0, gt=0, le=1024, description="largest answer of the server, in MiB"
    )

"""Options of the bridge. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config


class HarborConfig(Config):
    """Options of ``harbor``."""

    train: tuple[str, ...] = Field(
        (), description="task folders to train on, or folders of them: those with a task.toml"
    )
    eval: tuple[str, ...] = Field((), description="task folders to evaluate on, given like train")
    engine: str = Field(
        "", description="program that builds and runs containers, such as docker or podman"
    )
    host: bool = Field(
        False,
        description="without an engine: run tasks in a sandbox of this machine, with its programs in place of the "
        "image's; of a Dockerfile WORKDIR, ENV and COPY hold, and nothing else",
    )
    readable: tuple[str, ...] = Field(
        (),
        description="folders of this machine that tasks in its sandbox may read, beside /usr and the like",
    )
    form: Literal["fenced", "tools"] = Field(
        "fenced",
        description="form of the policy's commands: the last ```bash block of an answer, or calls of the tool bash",
    )
    variables: dict[str, str] = Field(
        default_factory=dict,
        description="values for the variables that tasks ask of their host: --env.harbor.variables.NAME VALUE",
    )
    max_turns: int = Field(50, ge=1, le=10_000, description="largest number of the policy's turns")
    command_s: float = Field(
        60.0, gt=0, allow_inf_nan=False, description="seconds for each command; it is then killed"
    )
    output_chars: int = Field(
        8_000,
        ge=1,
        le=10_000_000,
        description="largest number of characters of a command's output that the policy reads",
    )
    processes: int = Field(
        256,
        ge=2,
        le=10_000,
        description="largest number of processes of a command, in the sandbox of this machine",
    )
    file_mib: int = Field(
        256,
        ge=1,
        le=65_536,
        description="largest file that a command may write, in MiB, in the sandbox of this machine",
    )
    reward_key: str = Field(
        "",
        description="name of the number in reward.json that is the reward, if it has several and none is named "
        "reward",
    )
    missing_reward: float | None = Field(
        None,
        allow_inf_nan=False,
        description="reward if the verifier writes none in its time; unset: this is an error of the environment",
    )

"""Options of the executor ``endpoint``. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from rlhf_core import Config, ConfigError

COMMAND = "command"
"""Value of ``agent`` for a command."""


class EndpointConfig(Config):
    """Options of ``endpoint``."""

    agent: str = Field(
        description="function or coroutine that plays an episode with an AgentContext, as FILE.py:NAME or "
        "package.module:NAME; or the word command, which runs rollout.endpoint.command",
    )
    command: tuple[str, ...] = Field(
        (),
        description="words of the command that plays an episode if agent is command; {base_url}, {root_url}, "
        "{api_key}, {model}, {seed}, {task} (a JSON file) and {prompt} are filled in",
    )
    pass_env: tuple[str, ...] = Field(
        (),
        description="names of environment variables that the command gets from this process, beside the usual ones "
        "(docs/security.md)",
    )
    reward_from: Literal["agent", "rewards"] = Field(
        "agent",
        description="agent: the reward is what the agent returns (a command: its last line); rewards: --reward alone "
        "gives it",
    )
    on_error: Literal["fail", "drop", "value"] = Field(
        "fail",
        description="what happens if an agent raises, dies or returns nothing: fail ends the run, drop leaves out "
        "the episode, value trains on it with error_reward",
    )
    error_reward: float = Field(
        0.0,
        ge=-1e6,
        le=1e6,
        description="reward of an episode whose agent failed, with on_error = value",
    )
    models: tuple[str, ...] = Field(
        ("policy",),
        min_length=1,
        description="model names in requests that the policy answers to; *: any name",
    )
    overrides: Literal["refuse", "ignore"] = Field(
        "refuse",
        description="what happens to parts of a request that the run decides (temperature, penalties), that the "
        "engine does not enforce (a form) or that nothing reads: refuse the request, or ignore them",
    )
    thoughts: Literal["as_sent", "keep"] = Field(
        "as_sent",
        description="thoughts that a client or the chat template leaves out of the history. as_sent: the policy no "
        "longer reads them, and the episode forks; keep: it reads the tokens that were sampled",
    )
    max_requests: int = Field(
        256,
        ge=1,
        le=100_000,
        description="largest number of the policy's answers in an episode; further requests are refused",
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        description="largest number of tokens that the policy may write in an episode, in requests at the same time "
        "too; unset: no limit",
    )
    max_n: int = Field(
        16, ge=1, le=1024, description="largest number of answers that one request may ask for"
    )
    max_episodes: int = Field(
        256,
        ge=1,
        le=100_000,
        description="largest number of agents that run at the same time in one process; others wait",
    )
    max_concurrency: int = Field(
        64,
        ge=1,
        le=10_000,
        description="largest number of requests of one episode that the engine computes at once; others wait",
    )
    max_connections: int = Field(
        4096,
        ge=1,
        le=100_000,
        description="largest number of open connections of all episodes in one process",
    )
    max_body_mib: float = Field(
        16.0, gt=0.0, le=1024.0, description="largest size of a request, in MiB"
    )
    trace_folder: Path | None = Field(
        None,
        description="folder for a file of each episode in the form of OpenEnv's TrainingTrace; unset: no files",
    )
    request_timeout_s: float = Field(
        600.0, gt=0.0, description="seconds for the engine to answer one request"
    )
    episode_timeout_s: float = Field(1800.0, gt=0.0, description="seconds for one episode")

    def without_effect(self) -> Mapping[str, str]:
        if self.on_error == "value":
            return {}
        return {"error_reward": f"on_error is {self.on_error}. Set on_error value."}

    @model_validator(mode="after")
    def _command_where_named(self) -> EndpointConfig:
        if (self.agent == COMMAND) != bool(self.command):
            problem = (
                f"agent is {self.agent!r} and command is set; set agent to {COMMAND!r}, or leave command out"
                if self.command
                else f"agent is {COMMAND!r} and command is empty; expected the words of a command"
            )
            raise ValueError(problem)
        return self

    def check_outside(self) -> None:
        """Load the agent's function, or find the command's program, which a run would miss only once its model is
        loaded.

        Raises:
            ConfigError: there is none.
        """
        if self.agent == COMMAND:
            if shutil.which(self.command[0]) is None:
                raise ConfigError(
                    f"rollout.endpoint.command begins with {self.command[0][:200]!r}; expected a program on PATH, or "
                    "the path of one that may be executed",
                    code="agent/no-program",
                )
            return
        # Imported here: help and validation read this module.
        from .agents.function import load_function

        load_function(self.agent)

    def needed_by_options(self) -> frozenset[str]:
        """Return what the run has to have beside the agent."""
        return frozenset({"reward"}) if self.reward_from == "rewards" else frozenset()

"""Options of where an environment runs. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf_core.component import Config

from .bounds import NotNegative


class IsolationOptions(Config):
    """Base of the options that every environment has: where it runs."""

    isolation: Literal["none", "process", "venv", "remote"] = Field(
        "none",
        description="where episodes run: none: in the run's process; process: in workers; venv: in workers of "
        "another interpreter (python); remote: at servers of rlhf env serve (address)",
    )
    workers: int = Field(
        1,
        ge=1,
        le=256,
        description="number of worker processes, which get episodes in turn; for process and venv",
    )
    python: str | None = Field(
        None,
        description="interpreter, or folder of a virtual environment, that has rlhf-guard and the environment's "
        "package; for venv",
    )
    address: tuple[str, ...] = Field(
        (), description="HOST:PORT of each server; servers get episodes in turn; for remote"
    )
    token_file: str | None = Field(
        None,
        description="file with the servers' token; unset: the variable RLHF_ENV_TOKEN holds the token",
    )
    pass_env: tuple[str, ...] = Field(
        (),
        description="names of environment variables, such as a judge's key, that workers get beside the usual ones "
        "(docs/security.md); for process and venv",
    )
    restarts: NotNegative = Field(
        16,
        description="number of times in a run that workers are started again, or servers connected to again, after "
        "they ended or hung; the episodes that they held fail",
    )
    start_timeout_s: float = Field(
        120.0,
        gt=0.0,
        description="seconds for a worker to start, with all that the environment imports and loads, or for a server "
        "to answer",
    )
    step_timeout_s: float = Field(
        300.0,
        gt=0.0,
        description="seconds for each answer of a worker or server; a worker that cannot be interrupted after that "
        "is killed",
    )

    def without_effect(self) -> Mapping[str, str]:
        """Options of workers and servers where there are none, and the number of workers of servers."""
        if self.isolation == "none":
            names = ("workers", "token_file", "restarts", "start_timeout_s", "step_timeout_s")
            return dict.fromkeys(names, "the environment is in the run's process. Set isolation.")
        idle = () if self.isolation == "venv" or self.isolation == "process" else ("workers",)
        files = () if self.isolation == "remote" else ("token_file",)
        return dict.fromkeys((*idle, *files), f"isolation is {self.isolation}. Leave it out.")

    @model_validator(mode="after")
    def _needs_its_place(self) -> Self:
        if (self.isolation == "venv") != (self.python is not None):
            raise ValueError(
                f"isolation = {self.isolation!r} with python = {self.python!r}: expected python, an interpreter or the "
                "folder of a virtual environment, with isolation = 'venv' and with nothing else"
            )
        if (self.isolation == "remote") != bool(self.address):
            raise ValueError(
                f"isolation = {self.isolation!r} with address = {list(self.address)}: expected the HOST:PORT of a "
                "server with isolation = 'remote' and with nothing else"
            )
        if self.pass_env and self.isolation not in ("process", "venv"):
            raise ValueError(
                f"pass_env = {list(self.pass_env)} with isolation = {self.isolation!r}: expected isolation = 'process' "
                "or 'venv'; in the run's own process an environment reads all variables, and a server has its own"
            )
        return self

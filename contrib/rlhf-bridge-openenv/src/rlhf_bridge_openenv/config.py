"""Options of the bridge. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config
from rlhf_core.typed_table import TypedTable


class OpenEnvConfig(Config):
    """Options of ``openenv``. One of ``url``, ``app`` and ``command`` says where the server is."""

    url: str = Field(
        "",
        description="address of a running server: http://HOST:PORT, or https://HOST/PATH behind a proxy",
    )
    app: str = Field(
        "",
        description="application of a server that the run starts, as MODULE:NAME, such as echo_env.server.app:app",
    )
    command: tuple[str, ...] = Field(
        (),
        description="words of a command that starts a server; {port} is replaced by the port at 127.0.0.1 at which "
        "it has to listen",
    )
    server_python: str = Field(
        "",
        description="interpreter of app, or a virtual environment's folder; unset: the interpreter of the bridge",
    )
    server_folder: str = Field("", description="folder in which the run starts a server")
    server_variables: dict[str, str] = Field(
        default_factory=dict,
        description="further variables of a started server: --env.openenv.server_variables.NAME VALUE",
    )
    server_restarts: int = Field(
        3,
        ge=0,
        le=1000,
        description="number of times that a started server is started again after it died",
    )
    bearer_file: str = Field(
        "",
        description="file with a bearer token that a proxy before a running server asks for",
    )
    reset: TypedTable = Field(
        default_factory=dict,
        description="further arguments of the environment's reset: --env.openenv.reset.KEY VALUE",
    )
    splits: dict[str, str] = Field(
        default_factory=dict,
        description="names that the server has for splits of the run, if they differ: --env.openenv.splits.eval test",
    )
    action: Literal["auto", "text", "json", "tools"] = Field(
        "auto",
        description="form of an answer: the value of one field, a JSON object, or calls of tools; auto: by the "
        "server's schema of actions",
    )
    action_field: str = Field(
        "", description="field of the action that an answer's text fills; unset: its only one"
    )
    show: tuple[str, ...] = Field(
        (),
        description="fields of an observation that the policy is shown; unset: all but metadata. A single text is "
        "shown as it is, anything else as JSON",
    )
    instructions: str = Field(
        "",
        description="text before the first observation; unset: it explains how to write an action, if that is not "
        "text",
    )
    max_turns: int = Field(100, ge=1, le=10_000, description="largest number of the policy's turns")
    malformed_reward: float = Field(
        0.0,
        allow_inf_nan=False,
        description="reward of an answer that is no action, or that the server refuses as an action",
    )
    least_reward: float | None = Field(
        None,
        allow_inf_nan=False,
        description="an answer that is no action ends the episode, whose rewards add up to this, the least that an "
        "episode can earn; unset: it costs malformed_reward and the episode goes on. "
        "Set it where steps earn less than 0",
    )
    step_errors: Literal["fail", "show"] = Field(
        "fail",
        description="what happens if a step raises in the server. fail: it is an error of the environment; show: the "
        "policy reads it, like a malformed action",
    )
    answer_s: float = Field(
        120.0, gt=0, allow_inf_nan=False, description="seconds for each answer of the server"
    )
    start_s: float = Field(
        120.0, gt=0, allow_inf_nan=False, description="seconds until a started server answers"
    )
    capacity_s: float = Field(
        600.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds for which the run keeps trying a server that has no room for another session",
    )
    max_message_mib: float = Field(
        16.0, gt=0, le=1024, description="largest answer of the server, in MiB"
    )

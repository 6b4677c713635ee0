"""Where an MCP server is and which of its tools are offered. Imports nothing heavy."""

from __future__ import annotations

import shlex
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from rlhf_core import Config, ConfigError


class McpServer(Config):
    """One server: a command that speaks over its input and output, or an address (streamable HTTP)."""

    name: str = Field(
        min_length=1, max_length=64, description="name of the server in messages and in `prefix`"
    )
    command: tuple[str, ...] = Field(
        (), description="program and its arguments, for a local server"
    )
    url: str = Field(
        "", description="address of a server that runs, such as http://127.0.0.1:8000/mcp"
    )
    env: dict[str, str] = Field(
        default_factory=dict,
        description="environment variables of the command, beside HOME, PATH and the like",
    )
    headers: dict[str, str] = Field(
        default_factory=dict, description="headers of each request to `url`, such as Authorization"
    )
    only: tuple[str, ...] = Field((), description="tools that are offered; empty: all")
    prefix: str = Field(
        "", description="text before the name of each tool, where servers share names"
    )
    shared: bool = Field(
        True,
        description="one session for all episodes of a process; false: each episode has a session (and, by command, a "
        "server) of its own",
    )
    start_s: float = Field(
        30.0, gt=0, le=3_600, description="seconds until the server has to have listed its tools"
    )
    timeout_s: float = Field(30.0, gt=0, le=86_400, description="seconds that a call may take")

    @model_validator(mode="after")
    def _one_place(self) -> McpServer:
        if bool(self.command) == bool(self.url):
            raise ValueError(f"MCP server {self.name!r} takes one of command and url")
        if self.url and urlsplit(self.url).scheme not in ("http", "https"):
            raise ValueError(f"MCP server {self.name!r}: {self.url!r} is no http or https address")
        return self

    @classmethod
    def parse(cls, text: str) -> McpServer:
        """Return the server that ``NAME=COMMAND ARGUMENTS`` or ``NAME=http://...`` describes.

        Raises:
            ConfigError: it describes none.
        """
        name, equals, place = (part.strip() for part in text.partition("="))
        if not (name.isidentifier() and equals and place):
            raise ConfigError(
                f"expected an MCP server as NAME=COMMAND or NAME=http://..., got {text!r}",
                code="tool/malformed-server",
            )
        if place.startswith(("http://", "https://")):
            return cls(name=name, url=place)
        try:
            return cls(name=name, command=tuple(shlex.split(place)))
        except ValueError as error:
            raise ConfigError(
                f"MCP server {name!r}: {place!r} is no command: {error}",
                code="tool/malformed-server",
            ) from error

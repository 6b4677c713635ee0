"""Options of the environment `tools`. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, field_validator

from rlhf_core import Config
from rlhf_core.code_reference import parse
from rlhf_tools.limits import ToolLimits
from rlhf_tools.mcp.server import McpServer
from rlhf_tools.sandbox.limits import SandboxLimits


class ToolsConfig(Config):
    """Options of ``tools``."""

    functions: tuple[str, ...] = Field(
        (),
        description="functions of yours that the policy may call, as FILE.py:NAME; also a Tool, or a list of both",
    )
    mcp: tuple[str, ...] = Field(
        (),
        description="MCP servers whose tools the policy may call, as NAME=COMMAND or NAME=http://HOST/PATH",
    )
    mcp_per_episode: bool = Field(
        False,
        description="give each episode an MCP session of its own, and a process of its own of a server that is a "
        "command; false: episodes share them",
    )
    mcp_timeout_s: float = Field(
        30.0, gt=0, le=86_400, description="seconds for one call of an MCP server"
    )
    sandboxed_python: bool = Field(False, description="offer a sandboxed Python as a tool")
    limits: ToolLimits = Field(default_factory=ToolLimits)
    sandbox: SandboxLimits = Field(default_factory=SandboxLimits)

    def without_effect(self) -> Mapping[str, str]:
        names = () if self.mcp else ("mcp_per_episode", "mcp_timeout_s")
        return dict.fromkeys(names, "there is no MCP server. Set mcp too.")

    @field_validator("functions")
    @classmethod
    def _references(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            parse(name)
        return names

    @field_validator("mcp")
    @classmethod
    def _servers(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        for server in servers:
            McpServer.parse(server)
        return servers

    def servers(self) -> tuple[McpServer, ...]:
        """Return the MCP servers with their options."""
        changed = {"shared": not self.mcp_per_episode, "timeout_s": self.mcp_timeout_s}
        return tuple(McpServer.parse(text).model_copy(update=changed) for text in self.mcp)

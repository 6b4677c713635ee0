"""A harness of verifiers that plays in this process: the policy chats, and calls the task's tools.

verifiers' own chat programs, ``null`` and ``bash``, start a Python process for each episode, from an environment that
uv makes. This one makes the same requests for ``null``'s conversations without either. What it shares with them is
verifiers' own: how MCP servers are asked, and how long a tool's result may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import verifiers.v1 as vf
from verifiers.v1.clients import ModelContext
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.compaction import bound_tool_message
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

from rlhf_core.outside.json_reader import BrokenJson, parse_json

HARNESS_ID = "rlhf-bridge-verifiers"
"""Name of this harness in options of verifiers, which finds it as this package's export."""


class ChatHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """Asks until an answer calls no tool."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Play one segment of the conversation: the task's prompt, or what it has grown to."""
        servers = {
            name: {"url": url, "timeout": self.config.tool_timeout}
            for name, url in mcp_urls.items()
        }
        async with AsyncExitStack() as stack:
            schemas, owners, connections = await connect_mcp({"mcpServers": servers}, stack)
            session = await stack.enter_async_context(
                aiohttp.ClientSession(
                    headers={"Authorization": f"Bearer {secret}"},
                    timeout=aiohttp.ClientTimeout(total=None),
                )
            )
            body = {"model": ctx.model, "messages": self._conversation(data)}
            if schemas:
                body["tools"] = schemas
            while True:
                async with session.post(f"{endpoint}/chat/completions", json=body) as reply:
                    if reply.status != 200:
                        # verifiers knows why it said no: a stop of the task, or an error that it keeps.
                        return vf.ProgramResult(exit_code=1, stdout="", stderr=await reply.text())
                    answer = (await reply.json())["choices"][0]["message"]
                body["messages"].append(answer)
                if not answer.get("tool_calls"):
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                for call in answer["tool_calls"]:
                    result = await self._result(call["function"], owners, connections)
                    body["messages"].append(_tool_message(call, result))

    def _conversation(self, data: vf.TaskData) -> list[Any]:
        system, prompt = self.resolve_prompt(data)
        begin = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            return [*begin, {"role": "user", "content": prompt}]
        return [*begin, *map(message_to_wire, prompt or ())]

    async def _result(
        self, function: Mapping[str, str], owners: dict[str, Any], connections: dict[str, Any]
    ) -> Any:
        """Return what a tool says, or what is wrong with the call, for the policy to read."""
        name = function["name"]
        try:
            arguments = parse_json(function["arguments"] or "{}")
        except BrokenJson as error:
            return (
                f"error: invalid JSON in tool arguments ({error}); resend the call with valid JSON"
            )
        if not isinstance(arguments, dict):
            return f"error: tool arguments must be a JSON object, got {type(arguments).__name__}; resend as an object"
        if name not in owners:
            return f"error: unknown tool {name!r}"
        return await call_mcp(connections, owners, name, arguments)


def _tool_message(call: Mapping[str, Any], result: Any) -> Any:
    return bound_tool_message(
        {
            "role": "tool",
            "tool_call_id": call["id"],
            "content": result,
            "name": call["function"]["name"],
        }
    )

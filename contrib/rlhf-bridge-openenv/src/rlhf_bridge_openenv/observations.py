"""Answers of a server to reset and step: what the policy is shown, reward and end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core import RolloutError

NOTHING = "(nothing to see)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One answer."""

    fields: Mapping[str, Any]
    """The observation's fields; ``metadata`` is one of them."""
    reward: float
    done: bool


def seen_in(body: Mapping[str, Any], what: str) -> Seen:
    """Return an answer's parts.

    Raises:
        RolloutError: it has no observation, or its reward or end is none.
    """
    fields, reward, done = body.get("observation"), body.get("reward"), body.get("done", False)
    if not isinstance(fields, dict):
        raise RolloutError(
            f"answered {what} with the observation {fields!r:.200}; expected an object",
            code="environment/wrong-observation",
        )
    if reward is None:
        reward = 0.0
    # A whole number of JSON may be too large for a float.
    if not isinstance(reward, int | float) or abs(reward) > 1e300 or not math.isfinite(reward):
        raise RolloutError(
            f"answered {what} with the reward {reward!r:.200}; expected a finite number",
            code="environment/not-a-number",
        )
    if not isinstance(done, bool):
        raise RolloutError(
            f"answered {what} with done = {done!r:.200}; expected true or false",
            code="environment/wrong-answer",
        )
    metadata = body.get("metadata", fields.get("metadata"))
    return Seen(fields={**fields, "metadata": metadata}, reward=float(reward), done=done)


def shown(fields: Mapping[str, Any], show: Sequence[str]) -> str:
    """Return an observation as text: a single text as it is, anything else as JSON. Fields without a value are left
    out.

    Raises:
        RolloutError: it lacks every field of ``show``.
    """
    wanted = show or [name for name in fields if name != "metadata"]
    if show and not any(name in fields for name in show):
        raise RolloutError(
            f"show = {list(show)}: the observation has none of them; its fields are {', '.join(fields)}",
            code="environment/nothing-to-show",
        )
    kept = {name: fields[name] for name in wanted if fields.get(name) is not None}
    if len(kept) == 1 and isinstance(only := next(iter(kept.values())), str):
        return only
    return json.dumps(kept, ensure_ascii=False) if kept else NOTHING


def tool_result(fields: Mapping[str, Any]) -> str:
    """Return what a tool answered as text."""
    error = fields.get("error")
    if isinstance(error, Mapping):
        return f"error ({error.get('error_type')}): {error.get('message')}"
    result = fields.get("result")
    data = result.get("data") if isinstance(result, Mapping) else None
    value = result if data is None else data
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def offered_tools(result: object) -> tuple[Mapping[str, Any], ...]:
    """Return the schemas of a server's list of tools, in the form of chat templates.

    Raises:
        RolloutError: it is none, or empty.
    """
    listed = result.get("tools") if isinstance(result, Mapping) else None
    if not isinstance(listed, list) or not listed:
        raise RolloutError(
            f"listed its tools as {result!r:.200}; expected some in a list tools",
            code="environment/wrong-tools",
        )
    tools = []
    for tool in listed:
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise RolloutError(
                f"listed the tool {tool!r:.200}; expected an object with a name",
                code="environment/wrong-tools",
            )
        parameters = tool.get("inputSchema", tool.get("input_schema")) or {"type": "object"}
        function = {
            "name": tool["name"],
            "description": str(tool.get("description") or ""),
            "parameters": parameters,
        }
        tools.append({"type": "function", "function": function})
    return tuple(tools)

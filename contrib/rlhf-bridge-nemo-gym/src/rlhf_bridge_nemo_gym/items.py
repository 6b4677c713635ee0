"""Items of OpenAI's Responses API, in which NeMo Gym writes conversations, as chat messages and back."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core import RolloutError
from rlhf_core.contracts import Action, Stop

Fields = Mapping[str, Any]


def messages_of(items: object) -> tuple[Fields, ...]:
    """Return the chat messages of a request's ``input``.

    Raises:
        RolloutError: it has something other than text and calls.
    """
    if isinstance(items, str):
        return ({"role": "user", "content": items},)
    if not isinstance(items, list) or not items:
        raise RolloutError(
            f"the input is {items!r:.200}; expected a text or a list of items",
            code="environment/wrong-input",
        )
    return tuple(_message(item) for item in items)


def chat_tools(tools: object) -> tuple[Fields, ...]:
    """Return the schemas of a request's ``tools`` in the form of chat templates.

    Raises:
        RolloutError: one is no function.
    """
    found = []
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict) or tool.get("type") != "function" or not tool.get("name"):
            raise RolloutError(
                f"the tool {tool!r:.200}; expected a function with a name",
                code="environment/wrong-tools",
            )
        kept = {key: tool[key] for key in ("name", "description", "parameters") if key in tool}
        found.append({"type": "function", "function": kept})
    return tuple(found)


def output_items(action: Action, prefix: str) -> list[dict[str, Any]]:
    """Return the items of an answer: its text, and its calls, with ids that begin with ``prefix``."""
    text = action.text if action.content is None else action.content
    items: list[dict[str, Any]] = []
    if text.strip() or not action.tool_calls:
        content = {"type": "output_text", "text": _clean(text), "annotations": []}
        items.append(
            {
                "id": f"msg_{prefix}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [content],
            }
        )
    for number, call in enumerate(action.tool_calls):
        items.append(
            {
                "id": f"fc_{prefix}_{number}",
                "type": "function_call",
                "call_id": call.id or f"call_{prefix}_{number}",
                "name": _clean(call.name),
                "arguments": _clean(call.arguments),
                "status": "completed",
            }
        )
    return items


def response_of(params: Fields, output: Sequence[Fields], action: Action) -> dict[str, Any]:
    """Return a response of the API with these items, of which ``action`` wrote the last."""
    cut = action.stop is Stop.LENGTH
    return {
        "id": f"resp_{action.turn}",
        "object": "response",
        "created_at": int(time.time()),
        "model": str(params.get("model") or "policy"),
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": list(params.get("tools") or ()),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
    }


def _message(item: object) -> Fields:
    if not isinstance(item, dict):
        raise RolloutError(
            f"the input has {item!r:.200}; expected an object", code="environment/wrong-input"
        )
    kind = item.get("type", "message")
    if kind == "message":
        role = str(item.get("role"))
        return {
            "role": "system" if role == "developer" else role,
            "content": _text(item.get("content")),
        }
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"type": "function", "id": item.get("call_id"), "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind == "function_call_output":
        return {
            "role": "tool",
            "tool_call_id": item.get("call_id"),
            "content": _text(item.get("output")),
        }
    raise RolloutError(
        f"the input has an item {kind!r:.50}; expected messages and calls",
        code="environment/wrong-input",
    )


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise RolloutError(
            f"the input shows {json.dumps(content):.200}; expected text alone",
            code="environment/shows-no-text",
        )
    return "".join(map(str, texts))


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")

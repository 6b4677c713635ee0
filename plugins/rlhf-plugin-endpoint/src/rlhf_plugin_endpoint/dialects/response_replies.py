"""OpenAI's ``/v1/responses``: answers as items, whole or as a stream of events."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_core.contracts import Stop

from .model_request import ModelAnswer
from .openai_chat import ShownFields, logprobs_of, pieces


def response_id(answer: ModelAnswer) -> str:
    """Return the id under which the response can be gone on with."""
    return f"resp_{answer.name}"


def response_reply(
    answer: ModelAnswer, model: str, shown: ShownFields, body: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the reply to a request that is no stream.

    Args:
        body: the request, of which a response repeats some fields.
    """
    is_cut = answer.stop is Stop.LENGTH
    read, written = len(answer.prompt_ids), len(answer.token_ids)
    reply = {
        **_head(answer, model, body),
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": _items(answer, shown),
        "usage": {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        },
    }
    if shown.token_ids:
        reply["prompt_token_ids"] = answer.prompt_ids.tolist()
        reply["token_ids"] = answer.token_ids.tolist()
    return reply


def response_events(
    answer: ModelAnswer, model: str, shown: ShownFields, body: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and the data of each event of a stream."""
    done = response_reply(answer, model, shown, body)
    begun = {
        **_head(answer, model, body),
        "status": "in_progress",
        "incomplete_details": None,
        "output": [],
        "usage": None,
    }
    end = "response.incomplete" if answer.stop is Stop.LENGTH else "response.completed"
    events: list[tuple[str, Mapping[str, Any]]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for index, item in enumerate(done["output"]):
        events += _item_events(index, item)
    events.append((end, {"response": done}))
    for number, (name, data) in enumerate(events):
        yield name, {"type": name, "sequence_number": number, **data}


def _item_events(index: int, item: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    place = {"output_index": index, "item_id": item["id"]}
    kind = item["type"]
    if kind == "function_call":
        empty = {**item, "arguments": "", "status": "in_progress"}
        yield "response.output_item.added", {"output_index": index, "item": empty}
        for piece in pieces(item["arguments"]):
            yield "response.function_call_arguments.delta", {**place, "delta": piece}
        yield (
            "response.function_call_arguments.done",
            {**place, "name": item["name"], "arguments": item["arguments"]},
        )
    else:
        yield (
            "response.output_item.added",
            {"output_index": index, "item": {**item, "content": [], "status": "in_progress"}},
        )
        word = "output_text" if kind == "message" else "reasoning_text"
        for number, part in enumerate(item["content"]):
            inner = {**place, "content_index": number}
            added = {**part, "text": ""}
            yield "response.content_part.added", {**inner, "part": added}
            extra: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
            for piece in pieces(part["text"]):
                yield f"response.{word}.delta", {**inner, "delta": piece, **extra}
            yield f"response.{word}.done", {**inner, "text": part["text"], **extra}
            yield "response.content_part.done", {**inner, "part": part}
    yield "response.output_item.done", {"output_index": index, "item": item}


def _items(answer: ModelAnswer, shown: ShownFields) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if answer.reasoning:
        items.append(
            {
                "id": f"rs_{answer.name}",
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": answer.reasoning}],
                "status": "completed",
            }
        )
    if answer.content or not answer.tool_calls:
        logprobs = logprobs_of(answer)["content"] if shown.logprobs else []
        part = {
            "type": "output_text",
            "text": answer.content,
            "annotations": [],
            "logprobs": logprobs,
        }
        items.append(
            {
                "id": f"msg_{answer.name}",
                "type": "message",
                "role": "assistant",
                "status": "incomplete" if answer.stop is Stop.LENGTH else "completed",
                "content": [part],
            }
        )
    items += [
        {
            "id": f"fc_{call.id}",
            "type": "function_call",
            "call_id": f"call_{call.id}",
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }
        for call in answer.tool_calls
    ]
    return items


def _head(answer: ModelAnswer, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": response_id(answer),
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "error": None,
        "instructions": body.get("instructions"),
        "previous_response_id": body.get("previous_response_id"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": True,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "temperature": body.get("temperature"),
        "top_p": body.get("top_p"),
        "max_output_tokens": body.get("max_output_tokens"),
        "text": {"format": {"type": "text"}, **(body.get("text") or {})},
        "truncation": "disabled",
        "store": True,
    }

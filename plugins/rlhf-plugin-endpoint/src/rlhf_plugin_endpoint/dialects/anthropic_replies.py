"""Anthropic's ``/v1/messages``: answers as messages, whole or as a stream of events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from rlhf_core.contracts import Stop

from .anthropic_messages import call_input
from .model_request import ModelAnswer
from .openai_chat import ShownFields, pieces

SIGNATURE = "unsigned"
"""Signature of a thinking block. Nobody checks it; clients want one."""


def anthropic_reply(answer: ModelAnswer, model: str, shown: ShownFields) -> dict[str, Any]:
    """Return the reply to a request that is no stream."""
    message = {
        **_head(answer, model),
        "content": _blocks(answer),
        "stop_reason": _stop_reason(answer),
        "stop_sequence": answer.stop_string,
        "usage": {
            "input_tokens": len(answer.prompt_ids),
            "output_tokens": len(answer.token_ids),
        },
    }
    return {**message, **_shown(answer, shown)}


def anthropic_events(
    answer: ModelAnswer, model: str, shown: ShownFields
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and the data of each event of a stream."""
    usage = {"input_tokens": len(answer.prompt_ids), "output_tokens": 0}
    message = {
        **_head(answer, model),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    yield "message_start", {"type": "message_start", "message": message}
    for index, block in enumerate(_blocks(answer)):
        yield from _block_events(index, block)
    delta = {"stop_reason": _stop_reason(answer), "stop_sequence": answer.stop_string}
    yield (
        "message_delta",
        {
            "type": "message_delta",
            "delta": delta,
            "usage": {**usage, "output_tokens": len(answer.token_ids)},
            **_shown(answer, shown),
        },
    )
    yield "message_stop", {"type": "message_stop"}


def _block_events(index: int, block: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    kind = block["type"]
    if kind == "text":
        start: Mapping[str, Any] = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    elif kind == "thinking":
        start = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = [
            {"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])
        ]
        deltas.append({"type": "signature_delta", "signature": SIGNATURE})
    else:
        start = {**block, "input": {}}
        written = orjson.dumps(block["input"]).decode()
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(written)]
    yield (
        "content_block_start",
        {"type": "content_block_start", "index": index, "content_block": start},
    )
    for delta in deltas:
        yield (
            "content_block_delta",
            {"type": "content_block_delta", "index": index, "delta": delta},
        )
    yield "content_block_stop", {"type": "content_block_stop", "index": index}


def _blocks(answer: ModelAnswer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": SIGNATURE})
    if answer.content or not answer.tool_calls:
        blocks.append({"type": "text", "text": answer.content})
    blocks += [
        {
            "type": "tool_use",
            "id": f"toolu_{call.id}",
            "name": call.name,
            "input": call_input(call.arguments),
        }
        for call in answer.tool_calls
    ]
    return blocks


def _stop_reason(answer: ModelAnswer) -> str:
    if answer.stop is Stop.LENGTH:
        return "max_tokens"
    if answer.stop_string is not None:
        return "stop_sequence"
    return "tool_use" if answer.tool_calls else "end_turn"


def _shown(answer: ModelAnswer, shown: ShownFields) -> dict[str, Any]:
    """Return the fields beside Anthropic's own, for a client that asks with ``return_token_ids``."""
    if not shown.token_ids:
        return {}
    return {
        "prompt_token_ids": answer.prompt_ids.tolist(),
        "token_ids": answer.token_ids.tolist(),
        "logprobs": answer.logprobs.tolist(),
    }


def _head(answer: ModelAnswer, model: str) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.name}",
        "type": "message",
        "role": "assistant",
        "model": model,
    }

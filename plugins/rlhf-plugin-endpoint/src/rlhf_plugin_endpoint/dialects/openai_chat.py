"""OpenAI's ``/v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from .chat_messages import read_messages, read_tools
from .fields import flag, integer, object_of, refuse, strings
from .model_request import ModelAnswer, ModelRequest
from .problems import RequestProblem
from .request_fields import template_kwargs
from .request_images import RequestImages
from .sampling import DECIDED

MAX_STOPS = 16
PIECE = 256
"""Characters of one event of a stream."""
FIELDS = frozenset(
    {"messages", "tools", "tool_choice", "functions", "function_call", "reasoning_effort"}
    | {"max_completion_tokens", "max_tokens", "stop", "n"}
    | {"logprobs", "top_logprobs", "stream_options", *DECIDED}
)
"""Fields that this route reads, beside those that all do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFields:
    """Fields of a reply beside the answer, for a client that asks."""

    logprobs: bool = False
    token_ids: bool = False
    """``prompt_token_ids`` of the reply and ``token_ids`` of each choice, named as vLLM names them."""
    usage: bool = False
    """Usage at the end of a stream."""


def read_chat(body: Mapping[str, Any], images: RequestImages, *, max_n: int) -> ModelRequest:
    """Return what a body asks for.

    Raises:
        RequestProblem: a field is missing or wrong, or of the older form of tools.
    """
    for older, newer in (("functions", "tools"), ("function_call", "tool_choice")):
        refuse(body, (older,), f"is the older form of {newer}, which is not read; send {newer}")
    limit = integer(body, "max_completion_tokens", low=1)
    return ModelRequest(
        messages=read_messages(body.get("messages"), images),
        tools=read_tools(body),
        max_new_tokens=limit if limit is not None else integer(body, "max_tokens", low=1),
        stop=strings(body, "stop", most=MAX_STOPS),
        n=integer(body, "n", low=1, high=max_n) or 1,
        template_kwargs=template_kwargs(body),
    )


def read_shown(body: Mapping[str, Any]) -> ShownFields:
    """Return what a chat's reply has to show.

    Raises:
        RequestProblem: alternatives to the sampled tokens are asked for, which engines do not give.
    """
    integer(body, "top_logprobs", low=0)
    if body.get("top_logprobs"):
        raise RequestProblem(
            f"top_logprobs is {body['top_logprobs']}; expected 0: engines give the log-prob of the sampled token alone",
            code="unsupported_logprobs",
            parameter="top_logprobs",
        )
    options = body.get("stream_options")
    return ShownFields(
        logprobs=flag(body, "logprobs"),
        token_ids=flag(body, "return_token_ids"),
        usage=options is not None and flag(object_of(options, "stream_options"), "include_usage"),
    )


def chat_reply(answers: Sequence[ModelAnswer], model: str, shown: ShownFields) -> dict[str, Any]:
    """Return the reply to a request that is no stream."""
    reply = {
        **_head(answers, model, "chat.completion"),
        "choices": [
            {
                "index": index,
                "message": chat_message(answer),
                "logprobs": logprobs_of(answer) if shown.logprobs else None,
                "finish_reason": answer.finish_reason,
                **({"token_ids": answer.token_ids.tolist()} if shown.token_ids else {}),
            }
            for index, answer in enumerate(answers)
        ],
        "usage": usage_of(answers),
    }
    if shown.token_ids:
        reply["prompt_token_ids"] = answers[0].prompt_ids.tolist()
    return reply


def chat_message(answer: ModelAnswer) -> dict[str, Any]:
    """Return an answer as the assistant's message."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.content if answer.content or not answer.tool_calls else None,
    }
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [
            {
                "id": f"call_{call.id}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.tool_calls
        ]
    return message


def logprobs_of(answer: ModelAnswer) -> dict[str, Any]:
    """Return the log-probs of an answer's tokens, in OpenAI's form for chats."""
    return {
        "content": [
            {
                "token": text,
                "logprob": logprob,
                "bytes": list(text.encode("utf-8", "surrogatepass")),
                "top_logprobs": [],
            }
            for text, logprob in zip(answer.token_texts, answer.logprobs.tolist(), strict=True)
        ],
        "refusal": None,
    }


def usage_of(answers: Sequence[ModelAnswer]) -> dict[str, Any]:
    """Return the numbers of tokens read and written."""
    read = len(answers[0].prompt_ids)
    written = sum(len(answer.token_ids) for answer in answers)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }


def chat_events(
    answers: Sequence[ModelAnswer], model: str, shown: ShownFields
) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream, the closing ``[DONE]`` excepted."""
    head = _head(answers, model, "chat.completion.chunk")
    extra: dict[str, Any] = {"usage": None} if shown.usage else {}
    if shown.token_ids:
        extra["prompt_token_ids"] = answers[0].prompt_ids.tolist()
    for index, answer in enumerate(answers):
        for delta in _deltas(answer):
            yield {**head, **extra, "choices": [_delta(index, delta)]}
            extra.pop("prompt_token_ids", None)
        last = _delta(index, {}, answer.finish_reason)
        if shown.logprobs:
            last["logprobs"] = logprobs_of(answer)
        if shown.token_ids:
            last["token_ids"] = answer.token_ids.tolist()
        yield {**head, **extra, "choices": [last]}
    if shown.usage:
        yield {**head, "choices": [], "usage": usage_of(answers)}


def pieces(text: str) -> Iterator[str]:
    """Yield a text in the pieces that a stream sends."""
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]


def _deltas(answer: ModelAnswer) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in pieces(answer.reasoning):
        yield {"reasoning_content": piece}
    for piece in pieces(answer.content):
        yield {"content": piece}
    for index, call in enumerate(answer.tool_calls):
        function = {"name": call.name, "arguments": ""}
        yield {
            "tool_calls": [
                {
                    "index": index,
                    "id": f"call_{call.id}",
                    "type": "function",
                    "function": function,
                }
            ]
        }
        for piece in pieces(call.arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _delta(index: int, delta: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


def _head(answers: Sequence[ModelAnswer], model: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answers[0].name}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """Return one server-sent event."""
    line = f"event: {name}\n".encode() if name else b""
    return line + b"data: " + orjson.dumps(data) + b"\n\n"


DONE = b"data: [DONE]\n\n"
"""Last event of OpenAI's streams of chats and completions."""

"""From a completion to an answer: parsed from token ids, cut at the client's stop string, with ids for calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlhf_core.contracts import Completion, Message, Renderer, SamplingParams, Stop, ToolCall

from ..dialects.chat_messages import written_call
from ..dialects.model_request import ModelAnswer, ModelRequest
from .calls import ModelInput, call_id


def answer_of(
    request: ModelRequest,
    read: ModelInput,
    completion: Completion,
    place: bytes,
    renderer: Renderer,
    own: SamplingParams,
) -> ModelAnswer:
    """Return a completion as the client gets it.

    Args:
        own: the run's sampling; within its ``min_new_tokens`` first tokens a stop string is text like any other.
    """
    token_ids = completion.token_ids.tolist()
    parsed = renderer.parse(token_ids, prompt_ids=read.token_ids.tolist(), tools=request.tools)
    content = parsed.text if parsed.content is None else parsed.content
    if request.prompt is not None:
        content = parsed.text
    ignored = 0 if request.form else own.min_new_tokens
    # Counted from the end, because what was parsed may lack the beginning, such as a thought.
    last = len(renderer.decode(token_ids[ignored:])) if ignored and request.stop else None
    text, text_end = _cut(parsed.text, request.stop, last)
    content, content_end = _cut(content, request.stop, last)
    texts = renderer.decode_batch([[token] for token in token_ids]) if request.logprobs else ()
    return ModelAnswer(
        name=place.hex()[:24],
        prompt_ids=read.token_ids,
        token_ids=completion.token_ids,
        logprobs=completion.logprobs,
        token_texts=texts,
        text=text,
        reasoning=parsed.reasoning,
        content=content,
        tool_calls=_with_ids(parsed.tool_calls, place),
        stop=completion.stop,
        stop_string=(content_end or text_end) if completion.stop is Stop.STRING else None,
    )


def message_of(answer: ModelAnswer) -> Message:
    """Return an answer as a message in the form of templates, as a client sends it back."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [
            written_call(call.id, call.name, call.arguments) for call in answer.tool_calls
        ]
    return message


def _with_ids(calls: tuple[ToolCall, ...], place: bytes) -> tuple[ToolCall, ...]:
    return tuple(replace(call, id=call_id(place, index)) for index, call in enumerate(calls))


def _cut(text: str, stops: tuple[str, ...], last: int | None) -> tuple[str, str | None]:
    """Return the text before the first stop string in it, and that string.

    Args:
        last: number of last characters in which a stop string has to end; None: it may end anywhere.
    """
    least = 0 if last is None else len(text) - last + 1  # index behind the string at least
    found = [(text.find(stop, max(0, least - len(stop))), stop) for stop in stops]
    found = [(start, stop) for start, stop in found if start >= 0]
    if not found:
        return text, None
    end, stop = min(found)
    return text[:end], stop

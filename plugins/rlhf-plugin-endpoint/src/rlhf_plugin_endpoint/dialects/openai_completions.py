"""OpenAI's ``/v1/completions``: a text or tokens to go on with."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .fields import array_of, flag, integer, refuse, strings, wrong
from .model_request import ModelAnswer, ModelRequest
from .openai_chat import MAX_STOPS, ShownFields, pieces, usage_of
from .problems import RequestProblem
from .request_fields import KWARGS
from .sampling import DECIDED

LARGEST_ID = 2**31 - 1
FIELDS = frozenset(
    {"prompt", "max_tokens", "stop", "n", "logprobs", "stream_options", "echo", "suffix", *DECIDED}
)
"""Fields that this route reads, beside those that all do."""


def read_completion(body: Mapping[str, Any], *, max_n: int) -> ModelRequest:
    """Return what a body asks for.

    Raises:
        RequestProblem: a field is missing or wrong, or asks for several prompts, an echo or a suffix.
    """
    refuse(body, ("echo", "suffix"), "is not supported; expected a prompt to go on with")
    why = "is for messages; a prompt is read as it stands, and no chat template renders it"
    refuse(body, (KWARGS,), why)
    return ModelRequest(
        prompt=_prompt(body.get("prompt")),
        max_new_tokens=integer(body, "max_tokens", low=1),
        stop=strings(body, "stop", most=MAX_STOPS),
        n=integer(body, "n", low=1, high=max_n) or 1,
    )


def _prompt(value: object) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return value
    found = array_of(value, "prompt") if value is not None else []
    if len(found) == 1 and isinstance(found[0], str | list):
        return _prompt(found[0])
    if not found:
        raise RequestProblem(
            "prompt is missing; expected a text, or token ids", code="empty", parameter="prompt"
        )
    for index, token in enumerate(found):
        if type(token) is not int or not 0 <= token <= LARGEST_ID:
            raise wrong(f"prompt[{index}]", "one text or one array of token ids", token)
    return tuple(found)


def read_shown_text(body: Mapping[str, Any]) -> ShownFields:
    """Return what a completion's reply has to show.

    Raises:
        RequestProblem: alternatives to the sampled tokens are asked for, which engines do not give.
    """
    wanted = integer(body, "logprobs", low=0)
    if wanted:
        raise RequestProblem(
            f"logprobs is {wanted}; expected 0: engines give the log-prob of the sampled token alone",
            code="unsupported_logprobs",
            parameter="logprobs",
        )
    options = body.get("stream_options")
    return ShownFields(
        logprobs=wanted is not None,
        token_ids=flag(body, "return_token_ids"),
        usage=isinstance(options, dict) and flag(options, "include_usage"),
    )


def completion_reply(
    answers: Sequence[ModelAnswer], model: str, shown: ShownFields
) -> dict[str, Any]:
    """Return the reply to a request that is no stream."""
    return {
        **_head(answers, model),
        "choices": [
            {
                "index": index,
                "text": answer.text,
                "logprobs": _logprobs(answer) if shown.logprobs else None,
                "finish_reason": "length" if answer.finish_reason == "length" else "stop",
                **_ids(answer, shown),
            }
            for index, answer in enumerate(answers)
        ],
        "usage": usage_of(answers),
    }


def completion_events(
    answers: Sequence[ModelAnswer], model: str, shown: ShownFields
) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream, the closing ``[DONE]`` excepted."""
    head = _head(answers, model)
    for index, answer in enumerate(answers):
        for piece in pieces(answer.text):
            choice = {"index": index, "text": piece, "logprobs": None, "finish_reason": None}
            yield {**head, "choices": [choice]}
        last = {
            "index": index,
            "text": "",
            "logprobs": _logprobs(answer) if shown.logprobs else None,
            "finish_reason": "length" if answer.finish_reason == "length" else "stop",
            **_ids(answer, shown),
        }
        yield {**head, "choices": [last]}
    if shown.usage:
        yield {**head, "choices": [], "usage": usage_of(answers)}


def _ids(answer: ModelAnswer, shown: ShownFields) -> dict[str, Any]:
    if not shown.token_ids:
        return {}
    return {
        "token_ids": answer.token_ids.tolist(),
        "prompt_token_ids": answer.prompt_ids.tolist(),
    }


def _logprobs(answer: ModelAnswer) -> dict[str, Any]:
    offsets, end = [], 0
    for text in answer.token_texts:
        offsets.append(end)
        end += len(text)
    return {
        "tokens": list(answer.token_texts),
        "token_logprobs": answer.logprobs.tolist(),
        "top_logprobs": None,
        "text_offset": offsets,
    }


def _head(answers: Sequence[ModelAnswer], model: str) -> dict[str, Any]:
    return {
        "id": f"cmpl-{answers[0].name}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
    }

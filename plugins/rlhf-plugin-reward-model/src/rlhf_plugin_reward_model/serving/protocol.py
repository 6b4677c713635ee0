"""The JSON that OpenRLHF's trainers and reward servers exchange.

A request is ``{"query": [text], "prompts": [text], "labels": [any]}``, where a query is prompt and response together.
The answer is ``{"rewards": [number], "scores": [number], "extra_logs": {name: [number]}}``. Ours adds to the request
``"token_ids": [[int]]``, the sequences as they were sampled, which other servers ignore.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PATH = "/get_reward"


class BadRequest(ValueError):
    """A request that is not of this protocol; the text says what was expected."""


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Some sequences to score."""

    queries: list[str]
    """Prompt and response, special tokens shown."""
    prompts: list[str] | None
    """The beginnings of the queries, if they were sent."""
    token_ids: list[list[int]] | None
    """The same sequences as tokens, if they were sent."""


def read_request(body: bytes) -> ScoreRequest:
    """Read a request.

    Raises:
        BadRequest: it is no JSON, lacks a field, or has one of another type or length.
    """
    try:
        message: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON: {error}") from error
    if not isinstance(message, dict):
        raise BadRequest("expected a JSON object with 'query', a list of texts")
    queries = message.get("query")
    if isinstance(queries, str):
        queries = [queries]
    if not _is_list(queries, str):
        raise BadRequest(f"'query' is {_what(queries)}; expected a list of texts")
    prompts, token_ids = message.get("prompts"), message.get("token_ids")
    if token_ids is not None and not (
        isinstance(token_ids, list) and all(_is_list(row, int) for row in token_ids)
    ):
        raise BadRequest(f"'token_ids' is {_what(token_ids)}; expected a list of lists of integers")
    if not _is_list(prompts, str):  # other senders put what they like here; it is not needed
        prompts = None
    for name, texts in (("query", queries), ("prompts", prompts or [])):
        if not all(map(_is_unicode, texts)):
            raise BadRequest(
                f"{name!r} has half of a surrogate pair (such as \\ud800), which is no character; expected Unicode text"
            )
    for name, values in (("prompts", prompts), ("token_ids", token_ids)):
        if values is not None and len(values) != len(queries):
            raise BadRequest(f"{len(values)} {name} for {len(queries)} queries")
    return ScoreRequest(queries, prompts, token_ids)


def answer(scores: Sequence[float]) -> dict[str, Any]:
    """The body that answers a request."""
    return {"rewards": list(scores), "scores": list(scores), "extra_logs": {}}


def _is_list(value: Any, kind: type) -> bool:
    # type(), not isinstance(): JSON's true is no integer.
    return isinstance(value, list) and all(type(entry) is kind for entry in value)


def _is_unicode(text: str) -> bool:
    """False for what JSON can escape and no encoding can hold."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _what(value: Any) -> str:
    return "missing" if value is None else f"a {type(value).__name__} with other things in it"

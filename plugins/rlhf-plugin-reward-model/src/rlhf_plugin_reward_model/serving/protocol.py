"""The JSON protocol between OpenRLHF's trainers and reward servers.

A request is ``{"query": [text], "prompts": [text], "labels": [any]}``, where a query is prompt and response together.
The answer is ``{"rewards": [number], "scores": [number], "extra_logs": {name: [number]}}``. The reward ``http`` can add
``"token_ids": [[int]]`` to a request, the sequences as they were sampled; other servers ignore this field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rlhf_core.outside.json_reader import BrokenJson, parse_json

EntryT = TypeVar("EntryT")

PATH = "/get_reward"
"""Path of the server's address at which it answers requests."""


class BadRequest(ValueError):
    """A request that does not follow this protocol; the text names the expected form."""


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A request for scores of one or more sequences."""

    queries: list[str]
    """Text of each sequence, prompt and response, with special tokens shown."""
    prompts: list[str] | None
    """Prompt of each sequence; None if the request has none."""
    token_ids: list[list[int]] | None
    """Token ids of each sequence; None if the request has none."""


def read_request(body: bytes) -> ScoreRequest:
    """Return the request in a body.

    Raises:
        BadRequest: the body is no JSON, or a field is missing or has a wrong type or length.
    """
    try:
        message: Any = parse_json(body)
    except BrokenJson as error:
        raise BadRequest(f"the body is no JSON: {error}") from error
    if not isinstance(message, dict):
        raise BadRequest("expected a JSON object with 'query', a list of texts")
    query = message.get("query")
    queries = _list_of([query] if isinstance(query, str) else query, str)
    if queries is None:
        raise BadRequest(f"'query' is {_found(query)}; expected a list of texts")
    # Other senders may put any values into `prompts`, so a wrong type counts as a request without prompts.
    prompts = _list_of(message.get("prompts"), str)
    token_ids = _rows_of_integers(message.get("token_ids"))
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
    """Return the message that answers a request."""
    return {"rewards": list(scores), "scores": list(scores), "extra_logs": {}}


def _rows_of_integers(value: object) -> list[list[int]] | None:
    if value is None:
        return None
    rows = [_list_of(row, int) for row in value] if isinstance(value, list) else [None]
    found = [row for row in rows if row is not None]
    if len(found) < len(rows):
        raise BadRequest(f"'token_ids' is {_found(value)}; expected a list of lists of integers")
    return found


def _list_of(value: object, kind: type[EntryT]) -> list[EntryT] | None:
    """Return ``value`` if it is a list whose entries are all of type ``kind``, else None."""
    # type(), not isinstance(): JSON's true is no integer.
    if isinstance(value, list) and all(type(entry) is kind for entry in value):
        return value
    return None


def _is_unicode(text: str) -> bool:
    """False for what JSON can escape and no encoding can hold."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _found(value: object) -> str:
    return "missing" if value is None else f"a {type(value).__name__} with other things in it"

"""Fields of a request that the protocols have in common, and what becomes of the others.

A field that is dropped in silence lies to the client: it asked, and believes that it was heard. So each is obeyed, says
nothing about the answer, has a value that changes nothing, or is refused by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from .fields import object_of, text_of
from .problems import RequestProblem

EFFORT = "reasoning_effort"
"""Variable of chat templates, and OpenAI's field for chats."""
KWARGS = "chat_template_kwargs"

EVERYWHERE = frozenset({"model", "stream", "agent", "return_token_ids", KWARGS})
"""Fields that each route reads."""
_SERVICE = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prediction",
        "priority",
        "request_id",
        "cache_salt",
        "cache_control",
        "seed",
    }
)
"""Fields about the service and its speed. The run's seeds draw, so equal episodes are equal whatever ``seed`` says."""


def unread(body: Mapping[str, Any], read: Collection[str]) -> Iterator[str]:
    """Yield the fields of a body that nothing here reads; null is as good as a field that is left out.

    Args:
        read: fields that the route reads.
    """
    for name, value in body.items():
        if value is not None and name not in read and name not in EVERYWHERE | _SERVICE:
            yield name


def unread_problem(name: str, value: object, route: str) -> RequestProblem:
    """Return the problem of a field that nothing here reads."""
    return RequestProblem(
        f"{name} = {str(value)[:60]}: {route} reads no such field here, so it would change nothing. Leave it out, or "
        "run with --rollout.endpoint.overrides ignore",
        code="unknown_field",
        parameter=name[:200],
    )


def template_kwargs(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the variables that a request gives the chat template.

    Raises:
        RequestProblem: the field is no object.
    """
    value = body.get(KWARGS)
    return {} if value is None else object_of(value, KWARGS)


def effort_of(body: Mapping[str, Any]) -> str | None:
    """Return how much a client wants to be thought: OpenAI's ``reasoning_effort``, or ``reasoning.effort``.

    Raises:
        RequestProblem: a field is of another type.
    """
    value = body.get(EFFORT)
    if value is None and body.get("reasoning") is not None:
        value = object_of(body["reasoning"], "reasoning").get("effort")
    return None if value is None else text_of(value, EFFORT)

"""A request as the server read it, and the two kinds of reply: whole, and as a stream of parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

JSON = "application/json"
EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """One request, read to its end."""

    method: str
    path: str
    """Without the query."""
    headers: Mapping[str, str]
    """By lower-case name; of several with one name, the last."""
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """A reply that is sent at once."""

    status: int = 200
    body: bytes = b""
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReply:
    """A reply of parts, each sent as it comes. An error behind the first part has to be a part of its own."""

    parts: AsyncIterator[bytes]
    content_type: str = EVENTS


Handler = Callable[[HttpRequest], Awaitable[HttpReply | StreamReply]]
"""Answers a request. It is cancelled when its client goes away."""

Refusal = Callable[[int, str, str], HttpReply]
"""``refusal(status, path, text)``: the reply to a request that never reached the handler, in the form of its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits of a server."""

    max_body_bytes: int
    max_connections: int
    """Connections beyond these are answered with 503 and closed."""
    receive_timeout_s: float
    """Seconds in which a request has to arrive, from its first byte to its last."""
    idle_timeout_s: float
    """Seconds for which a connection without a request stays open."""
    send_timeout_s: float
    """Seconds for which a client may leave a reply unread."""

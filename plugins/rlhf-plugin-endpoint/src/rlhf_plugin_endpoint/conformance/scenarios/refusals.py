"""Refusals: what cannot be answered rightly gets a typed error, soon, and nothing of it trains."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from ..adapter import EndpointUnderTest
from ..checks import check_exact, expect
from ..client import EpisodeClient, HttpAnswer
from .scene import Scene, promise, scene, user

HUGE_BYTES = 100 * 2**20
"""Bytes of a body that is announced, and not sent to its end."""


def _says(prompt: str, index: int) -> str:
    return "fine"


def _expect_error(answer: HttpAnswer, *statuses: int) -> None:
    expect(
        answer.status in statuses,
        f"expected status {' or '.join(map(str, statuses))}, got {answer.status}: {answer.body[:200]!r}",
    )
    error = answer.json().get("error")
    expect(
        isinstance(error, dict) and error.get("message"),
        f"expected an error object with a message, got {answer.body[:200]!r}",
    )


def _goes_on(play: Scene) -> None:
    """Check that the episode still works, and that its one good answer is all that trains."""
    play.client.chat([user("still there?")])
    trace = play.episode.finish()
    check_exact(trace, play.policy.record[-1:])


def _refused(endpoint: EndpointUnderTest, body: Mapping[str, Any] | bytes, *statuses: int) -> None:
    with scene(endpoint, _says) as play:
        if not isinstance(body, bytes):
            body = {"model": play.client.model, "messages": [user("hi")], **body}
        _expect_error(play.client.post("/v1/chat/completions", body), *statuses)
        expect(not play.policy.record, "the policy was asked all the same")
        _goes_on(play)


@promise("no answer without the episode's key")
def no_key(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, _says) as play:
        body = {"model": play.client.model, "messages": [user("hi")]}
        for headers in ({"authorization": ""}, {"authorization": "Bearer sk-wrong"}):
            _expect_error(play.client.post("/v1/chat/completions", body, headers), 401, 403)
        _goes_on(play)


@promise("another model's name is refused")
def unknown_model(endpoint: EndpointUnderTest) -> None:
    _refused(endpoint, {"model": "no-such-model-4"}, 400, 404)


@promise("n = 1 000 000 is refused")
def million_answers(endpoint: EndpointUnderTest) -> None:
    _refused(endpoint, {"n": 1_000_000}, 400, 422)


@promise("broken JSON is a typed error")
def broken_json(endpoint: EndpointUnderTest) -> None:
    _refused(endpoint, b'{"model": "policy", "messages": [', 400, 422)


@promise("text that is no Unicode is refused")
def half_surrogate(endpoint: EndpointUnderTest) -> None:
    body = b'{"model": "policy", "messages": [{"role": "user", "content": "\\ud800"}]}'
    _refused(endpoint, body, 400, 422)


@promise("100 000 nested arrays are refused")
def deep_nesting(endpoint: EndpointUnderTest) -> None:
    _refused(endpoint, b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, 422)


@promise("a body of 100 MiB is refused before it is read")
def huge_body(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, _says) as play:
        head = (
            f"POST {play.client.path}/v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
            f"content-length: {HUGE_BYTES}\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {play.client.api_key}\r\n\r\n"
        )
        reply = _raw(play.client, head.encode(), b" " * 2**16)
        expect(b" 413 " in reply, f"expected status 413 before the body is sent, got {reply!r}")
        _goes_on(play)


@promise("requests that never end keep nobody waiting")
def half_open(endpoint: EndpointUnderTest) -> None:
    """Clients that begin a request and say no more keep nobody waiting."""
    with scene(endpoint, _says) as play:
        held = [socket.create_connection(play.client.address, timeout=30) for _ in range(50)]
        try:
            for each in held:
                each.sendall(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-le")
            play.client.chat([user("hello")])
        finally:
            for each in held:
                each.close()
        play.check(paths=1)


@promise("a client's temperature does not change what is sampled")
def temperature(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, _says) as play:
        body = {"model": play.client.model, "messages": [user("hi")], "temperature": 0.123}
        play.client.post("/v1/chat/completions", body)
        drawn = {answer.temperature for answer in play.policy.record}
        expect(
            drawn <= {endpoint.temperature},
            f"the policy sampled at {drawn}; expected the run's {endpoint.temperature}, or a refusal",
        )
        play.client.chat([user("still there?")])
        play.check()


@promise("an engine that fails is a typed error")
def engine_error(endpoint: EndpointUnderTest) -> None:
    with scene(endpoint, _says, fails=True) as play:
        body = {"model": play.client.model, "messages": [user("hi")]}
        _expect_error(play.client.post("/v1/chat/completions", body), 500, 502, 503)


def _raw(client: EpisodeClient, head: bytes, body: bytes) -> bytes:
    """Send a head and the begin of a body, and return the begin of the reply."""
    with socket.create_connection(client.address, timeout=30) as connection:
        connection.sendall(head + body)
        return connection.recv(4096)

"""A client of plain HTTP, so that a scenario is what it sends and not what a library makes of it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .adapter import OpenEpisode

TIMEOUT_S = 60.0
"""Seconds for one answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """Reply to a request."""

    status: int
    body: bytes

    def json(self) -> Any:
        """Return the body's value.

        Raises:
            ValueError: it is no JSON.
        """
        return json.loads(self.body)

    def events(self) -> list[dict[str, Any]]:
        """Return the data of each server-sent event, ``[DONE]`` excepted."""
        lines = self.body.decode().splitlines()
        data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
        return [json.loads(each) for each in data if each != "[DONE]"]


class EpisodeClient:
    """Sends requests of one episode, each on a connection of its own."""

    def __init__(self, episode: OpenEpisode) -> None:
        self.model = episode.model
        self.api_key = episode.api_key
        parts = urlsplit(episode.root_url)
        assert parts.hostname is not None
        self.address = (parts.hostname, parts.port or 80)
        self.path = parts.path.rstrip("/")

    def post(
        self,
        route: str,
        body: Mapping[str, Any] | bytes,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> HttpAnswer:
        """Send a body and return the reply."""
        connection = self.send(route, body, headers, timeout_s=timeout_s)
        try:
            reply = connection.getresponse()
            return HttpAnswer(status=reply.status, body=reply.read())
        finally:
            connection.close()

    def send(
        self,
        route: str,
        body: Mapping[str, Any] | bytes,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> http.client.HTTPConnection:
        """Send a body, and return the connection without reading the reply."""
        connection = http.client.HTTPConnection(*self.address, timeout=timeout_s)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {
            "content-type": "application/json",
            "authorization": f"Bearer {self.api_key}",
            **(headers or {}),
        }
        connection.request("POST", self.path + route, data, sent)
        return connection

    def chat(
        self,
        messages: list[dict[str, Any]],
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Ask by ``/v1/chat/completions``, and return the message of the first choice.

        Raises:
            RefusedRequest: the status is not 200.
        """
        body = {"model": self.model, "messages": messages, **fields}
        message: dict[str, Any] = self.ask("/v1/chat/completions", body, headers)["choices"][0][
            "message"
        ]
        return message

    def ask(
        self, route: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Send a body and return the reply's object.

        Raises:
            RefusedRequest: the status is not 200.
        """
        answer = self.post(route, body, headers)
        if answer.status != 200:
            raise RefusedRequest(
                f"expected an answer from {route}, got {answer.status}: "
                f"{answer.body[:300].decode(errors='replace')}"
            )
        reply: dict[str, Any] = answer.json()
        return reply


class RefusedRequest(Exception):
    """A request that a scenario needs, and that the endpoint refuses."""

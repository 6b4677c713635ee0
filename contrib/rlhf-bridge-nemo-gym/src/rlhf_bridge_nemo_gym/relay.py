"""A model server at a fixed address of this machine that hands requests on to the episode that they name.

It knows episodes by random names of 128 bits, which stand in the path (``/ng-rollout/NAME/...``, as NeMo Gym writes it)
or in the field ``rlhf_episode`` of the body's ``metadata``. A request that names none is answered with 404.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import httpx2
import uvicorn

from rlhf_core import ConfigError
from rlhf_core.outside.json_reader import BrokenJson, parse_json

EPISODE_FIELD = "rlhf_episode"

_MAX_BODY_BYTES = 64 * 2**20
_PATH = re.compile(
    r"(?:/ng-rollout/(?P<name>[\w.-]+?)(?:/training-token-capture)?)?"
    r"/v1/(?P<route>responses|chat/completions|completions|messages)"
)
_RELAYS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, Relay]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedEpisode:
    """The policy's address for one episode."""

    base_url: str
    api_key: str = field(repr=False)
    model: str


class Relay:
    """A relay of an event loop; it ends with the loop. Made by ``relay_at``."""

    def __init__(self, port: int) -> None:
        self._episodes: dict[str, RelayedEpisode] = {}
        self._client = httpx2.AsyncClient(timeout=None, trust_env=False)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
        except OSError as error:
            self._socket.close()
            raise ConfigError(
                f"relay_port = {port}: expected a free port of this machine, and one process that plays episodes "
                f"({error})",
                code="environment/port-taken",
            ) from error
        options = uvicorn.Config(
            self._answer,
            interface="asgi3",
            log_level="critical",
            lifespan="off",
            access_log=False,
        )
        self._server = _QuietServer(options)
        self._serving = asyncio.create_task(self._serve(), name="relay for NeMo Gym")

    @contextmanager
    def episode(self, base_url: str, api_key: str, model: str) -> Iterator[str]:
        """Hand requests on to an episode within the block, which gets the episode's name."""
        name = f"e{secrets.token_hex(16)}"
        self._episodes[name] = RelayedEpisode(base_url=base_url, api_key=api_key, model=model)
        try:
            yield name
        finally:
            del self._episodes[name]

    async def _serve(self) -> None:
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()
            await self._client.aclose()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, as ASGI has it."""
        if scope["type"] != "http":
            return
        raw = await _body(receive)
        if raw is None:
            return await _send(send, 413, _problem("the body is too large"))
        found = _PATH.fullmatch(scope["path"])
        try:
            body = parse_json(raw)
        except BrokenJson:
            body = None
        if found is None or scope["method"] != "POST" or not isinstance(body, dict):
            return await _send(
                send, 404, _problem("expected POST /v1/responses with a JSON object")
            )
        metadata = body.get("metadata")
        marks = dict(metadata) if isinstance(metadata, dict) else {}
        name = found["name"] or marks.get(EPISODE_FIELD)
        marks.pop(EPISODE_FIELD, None)
        episode = self._episodes.get(str(name))
        if episode is None:
            return await _send(send, 404, _problem("the request names no episode that is played"))
        body["model"] = episode.model
        body.pop("metadata", None)
        if marks:
            body["metadata"] = marks
        return await self._hand_on(episode, found["route"], body, send)

    async def _hand_on(
        self, episode: RelayedEpisode, route: str, body: dict[str, Any], send: Any
    ) -> None:
        try:
            reply = await self._client.post(
                f"{episode.base_url}/{route}",
                json=body,
                headers={"authorization": f"Bearer {episode.api_key}"},
            )
        except httpx2.HTTPError as error:
            return await _send(send, 502, _problem(f"the policy broke off ({error!r:.200})"))
        kind = reply.headers.get("content-type", "application/json")
        retry = reply.headers.get("x-should-retry")
        return await _send(send, reply.status_code, reply.content, kind, retry)


class _QuietServer(uvicorn.Server):
    """A server that leaves the signals to the run."""

    def install_signal_handlers(self) -> None:
        """Do nothing."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield


async def relay_at(port: int) -> Relay:
    """Return this event loop's relay at a port, which is opened if it is not yet.

    Raises:
        ConfigError: the port is taken.
    """
    relays = _RELAYS.setdefault(asyncio.get_running_loop(), {})
    if port not in relays:
        relays[port] = Relay(port)
    return relays[port]


async def _body(receive: Any) -> bytes | None:
    """Return a request's body; None if it is too large."""
    raw = bytearray()
    while True:
        message = await receive()
        raw += message.get("body", b"")
        if len(raw) > _MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return bytes(raw)


def _problem(text: str) -> bytes:
    return json.dumps({"error": {"message": text, "type": "invalid_request_error"}}).encode()


async def _send(
    send: Any, status: int, body: bytes, kind: str = "application/json", retry: str | None = None
) -> None:
    headers = [(b"content-type", kind.encode())]
    if retry is not None:
        headers.append((b"x-should-retry", retry.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

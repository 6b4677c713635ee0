"""The host of a process's episodes: one server, and an address and a key for each episode."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import orjson

from .dialects.problems import RequestProblem, problem_reply
from .episode.session import EpisodeSession
from .routes import RouteOptions, Routes
from .web.exchange import HttpLimits, HttpReply, HttpRequest, StreamReply
from .web.server import HttpServer

_HEALTHY = HttpReply(body=orjson.dumps({"status": "ok"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeAddress:
    """Where an agent reaches the policy."""

    root_url: str
    """Address without ``/v1``, as clients of Anthropic want it."""
    api_key: str

    @property
    def base_url(self) -> str:
        """Address with ``/v1``, as clients of OpenAI want it."""
        return f"{self.root_url}/v1"


class EndpointHost:
    """Serves episodes on a random port of this machine alone."""

    def __init__(self, limits: HttpLimits, options: RouteOptions) -> None:
        self._server = HttpServer(self._answer, _refusal, limits)
        self._options = options
        self._episodes: dict[str, Routes] = {}

    async def start(self) -> None:
        """Listen."""
        await self._server.start()

    async def close(self) -> None:
        """Stop, and close every connection."""
        await self._server.close()

    @property
    def num_connections(self) -> int:
        """Number of open connections."""
        return self._server.num_connections

    @contextmanager
    def hosting(self, session: EpisodeSession) -> Iterator[EpisodeAddress]:
        """Serve an episode at an address of its own, which nobody can guess."""
        secret, key = secrets.token_urlsafe(12), secrets.token_urlsafe(24)
        self._episodes[secret] = Routes(session, key, self._options)
        try:
            url = f"http://127.0.0.1:{self._server.port}/e/{secret}"
            yield EpisodeAddress(root_url=url, api_key=key)
        finally:
            del self._episodes[secret]

    async def _answer(self, request: HttpRequest) -> HttpReply | StreamReply:
        try:
            if request.path.endswith("/health"):
                return _HEALTHY
            _, _, secret, *rest = [*request.path.split("/", 3), "", ""][:4]
            routes = self._episodes.get(secret) if request.path.startswith("/e/") else None
            if routes is None:
                raise RequestProblem(
                    "there is no episode at this address: it is over, or never was",
                    status=404,
                    code="unknown_episode",
                )
            return await routes.answer(f"/{rest[0]}", request)
        except RequestProblem as problem:
            return problem_reply(problem, request.path)


def _refusal(status: int, path: str, text: str) -> HttpReply:
    return problem_reply(RequestProblem(text, status=status, code="http"), path)

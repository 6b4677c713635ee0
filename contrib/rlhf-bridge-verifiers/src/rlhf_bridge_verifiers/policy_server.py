"""The model endpoint of verifiers' client: one server for all episodes of a process and event loop.

verifiers stands between a harness and its model with a server of its own, which records, stops and rewrites. It asks
the model at a URL, and names the rollout in a header, so one URL serves all episodes. Listens at the loopback, and
answers nobody who lacks its key.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import verifiers.v1 as vf
from aiohttp import web
from verifiers.v1.clients.client import SESSION_ID_HEADER
from verifiers.v1.dialects import ChatDialect

from rlhf_core import RolloutError

from .asking import Asking
from .handover import Stopped

KEY_HEADER = "X-RLHF-Key"
MAX_BODY = 2**30
"""Longest request, in bytes: what verifiers' own server takes."""


class PolicyServer:
    """Answers requests by the episodes that they belong to."""

    def __init__(self) -> None:
        self._key = secrets.token_urlsafe(32)
        self._episodes: dict[str, Asking] = {}
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def start(self) -> None:
        """Listen at a free port of the loopback."""
        application = web.Application(client_max_size=MAX_BODY)
        application.router.add_get("/v1/models", self._models)
        application.router.add_post("/v1/chat/completions", self._chat)
        application.router.add_post("/v1/{route:.*}", self._other)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._runner is not None:
            await self._runner.cleanup()

    def model(self) -> vf.ModelContext:
        """Return the policy as verifiers names a model."""
        return vf.ModelContext(
            model="policy",
            client=vf.EvalClientConfig(
                base_url=f"http://127.0.0.1:{self._port}/v1",
                # The key is in a header, since verifiers reads API keys from the process's variables alone.
                api_key_var="RLHF_BRIDGE_HAS_NO_API_KEY",
                headers={KEY_HEADER: self._key},
            ),
        )

    def register(self, rollout: vf.Trace, asking: Asking) -> None:
        """Let a rollout of an episode ask."""
        asking.rollouts[rollout.id] = rollout
        self._episodes[rollout.id] = asking

    def forget(self, asking: Asking) -> None:
        """Answer an episode's rollouts no more."""
        asking.close()
        for rollout in asking.rollouts:
            self._episodes.pop(rollout, None)

    async def _chat(self, request: web.Request) -> web.Response:
        asking = self._asking(request)
        if asking is None:
            return _problem("no episode asks with this key and this rollout", 401)
        body = await request.json()
        try:
            answer = await asking.completion(request.headers[SESSION_ID_HEADER], body)
        except RolloutError as error:
            return _problem(str(error), 400)
        except Stopped:
            return _problem("the run's limits ended the policy's turns", 400)
        if body.get("stream"):
            events = b"".join(ChatDialect().stream_events(dict(answer)))
            return web.Response(body=events, content_type="text/event-stream")
        return web.json_response(answer)

    async def _other(self, request: web.Request) -> web.Response:
        route = request.match_info["route"]
        problem = f"the harness asked at /v1/{route}; expected one that asks for chat completions"
        asking = self._asking(request)
        if asking is not None:
            asking.refuse(RolloutError(problem, code="environment/no-chat-completion"))
        return _problem(problem, 400)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "policy", "object": "model"}]})

    def _asking(self, request: web.Request) -> Asking | None:
        key = request.headers.get(KEY_HEADER, "")
        if not secrets.compare_digest(key.encode(), self._key.encode()):
            return None
        return self._episodes.get(request.headers.get(SESSION_ID_HEADER, ""))


def _problem(text: str, status: int) -> web.Response:
    body: Mapping[str, Any] = {"error": {"message": text, "type": "invalid_request_error"}}
    return web.json_response(body, status=status, headers={"x-should-retry": "false"})

"""Requests to one of NeMo Gym's servers for one episode: cookies kept, answers within a time and a size."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx2

from rlhf_core import ConfigError, RolloutError
from rlhf_core.outside.json_reader import BrokenJson, parse_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """A server's answer."""

    status: int
    text: str

    def fields(self, path: str) -> dict[str, Any]:
        """Return the JSON object that it is.

        Raises:
            RolloutError: it is none, or an error.
        """
        if self.status != 200:
            raise RolloutError(
                f"answered {path} with status {self.status} and {self.text!r:.500}",
                code="environment/status",
            )
        try:
            value = parse_json(self.text, finite=True)
        except BrokenJson as error:
            raise RolloutError(
                f"answered {path} with what is no JSON ({error!s:.200})",
                code="environment/no-json",
            ) from error
        if not isinstance(value, dict):
            raise RolloutError(
                f"answered {path} with {self.text!r:.200}; expected an object",
                code="environment/wrong-answer",
            )
        return value


class GymClient:
    """A line to a server, with the cookies by which it knows the episode.

    Args:
        label: words for messages: name, version and address.

    Raises:
        ConfigError: the URL is none.
    """

    def __init__(self, url: str, label: str, *, answer_s: float, max_bytes: int) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ConfigError(
                f"url = {url!r}: expected http://HOST:PORT", code="environment/address"
            )
        named = f"NeMo Gym environment {label}" if label else "the NeMo Gym server"
        self.label = f"{named} at {parts.netloc.rpartition('@')[2]}"
        self._answer_s, self._max_bytes = answer_s, max_bytes
        # Proxies of the environment's variables are for other networks than a server's of the run.
        self._client = httpx2.AsyncClient(
            base_url=url.rstrip("/"), timeout=None, verify=_tls(), trust_env=False
        )

    async def post(self, path: str, body: Mapping[str, Any]) -> ServerAnswer:
        """Return the answer to a JSON object.

        Raises:
            RolloutError: the server cannot be reached, breaks off, takes too long, or sends too much.
        """
        return await self._sent("POST", path, json.dumps(body).encode())

    async def get(self, path: str) -> ServerAnswer:
        """Return the answer to a question without a body.

        Raises:
            RolloutError: as for ``post``.
        """
        return await self._sent("GET", path, None)

    async def close(self) -> None:
        """Hang up."""
        await self._client.aclose()

    async def _sent(self, method: str, path: str, body: bytes | None) -> ServerAnswer:
        headers = {"content-type": "application/json"} if body is not None else {}
        try:
            async with (
                asyncio.timeout(self._answer_s),
                self._client.stream(method, path, content=body, headers=headers) as reply,
            ):
                raw = bytearray()
                async for chunk in reply.aiter_bytes():
                    raw += chunk
                    if len(raw) > self._max_bytes:
                        limit = self._max_bytes / 2**20
                        raise RolloutError(
                            f"answered {path} with more than {limit:g} MiB",
                            code="environment/large-answer",
                        )
                return ServerAnswer(status=reply.status_code, text=raw.decode(errors="replace"))
        except TimeoutError as error:
            raise RolloutError(
                f"did not answer {path} within {self._answer_s:g} s", code="environment/too-slow"
            ) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise RolloutError(
                f"broke off its answer to {path}, or cannot be reached ({type(error).__name__}: {error})",
                code="environment/unreachable",
            ) from error


@cache
def _tls() -> ssl.SSLContext:
    # One for all episodes: making one takes longer than a request.
    return ssl.create_default_context()

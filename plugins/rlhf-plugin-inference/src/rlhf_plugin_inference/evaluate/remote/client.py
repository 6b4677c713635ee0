"""A client of an OpenAI-compatible server: one request for each answer, repeated while the server cannot answer."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlhf_core import ConfigError, PluginError, RolloutError
from rlhf_core.contracts import Message, SamplingParams
from rlhf_core.outside.json_reader import parse_json

from ..options import RemoteModel
from .answers import ChatAnswer, UnreadableAnswer, beginning, read_answer

if TYPE_CHECKING:
    import httpx2

_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses by which a server, or a proxy before it, says that it did not do the work."""
_MAX_WAIT_S = 60.0
_MAX_ASKED_S = 600.0
"""Longest pause that a server may ask for."""
_MAX_BYTES = 64 * 2**20
_PROBE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request for one answer."""

    name: str
    """Name of the episode and the turn, for messages."""
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    sampling: SamplingParams
    seed: int

    def body(self, model: str) -> bytes:
        """Return the request as JSON; what has its usual value is left out."""
        sampling = self.sampling
        values: dict[str, Any] = {
            "model": model,
            "messages": list(self.messages),
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_new_tokens,
            # Servers differ in how large a seed they take; all take 31 bits.
            "seed": self.seed % 2**31,
        }
        if sampling.top_p != 1.0:
            values["top_p"] = sampling.top_p
        if sampling.stop:
            values["stop"] = list(sampling.stop)
        if self.tools:
            values["tools"] = list(self.tools)
        try:
            return json.dumps(values, allow_nan=False).encode("utf-8")
        except (TypeError, ValueError) as error:
            raise RolloutError(
                f"{self.name}: expected messages that JSON can hold; {error}", code="data/not-json"
            ) from error


class _Unanswered(Exception):
    """An attempt that may be repeated. The text says what happened."""

    def __init__(self, text: str, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class ChatClient:
    """Client of ``/chat/completions``. Call ``open`` first and ``close`` last."""

    def __init__(self, options: RemoteModel) -> None:
        assert options.url is not None
        assert options.model is not None
        self._options = options
        self._url = options.url.rstrip("/")
        self._model = options.model
        self._free = asyncio.Semaphore(options.concurrency)
        self._http: httpx2.AsyncClient | None = None

    async def open(self) -> None:
        """Connect, and see that the server is there and has the model, as far as it says so.

        Raises:
            ConfigError: nothing answers at the address, the key is refused, or the server has no such model.
            PluginError: the library of the client is not installed.
        """
        try:
            import httpx2
        except ImportError as error:
            raise PluginError(
                "--remote.url needs the package httpx2. Install it: pip install 'rlhf-plugin-inference[remote]'",
                code="plugin/missing-dependency",
            ) from error
        key = os.environ.get(self._options.key_variable)
        self._http = httpx2.AsyncClient(
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=self._options.timeout_s,
            limits=httpx2.Limits(max_connections=self._options.concurrency),
        )
        try:
            async with asyncio.timeout(_PROBE_S):
                response = await self._http.get(f"{self._url}/models")
        except (httpx2.HTTPError, TimeoutError) as error:
            raise ConfigError(
                f"--remote.url {self._url}: expected a server; none answers there "
                f"({str(error) or type(error).__name__}). Start it, or correct the address",
                code="remote/unreachable",
            ) from error
        self._refuse_key(response.status_code)
        if response.status_code == 200:
            self._check_model(response.content)

    async def close(self) -> None:
        """Close all connections."""
        if self._http is not None:
            await self._http.aclose()

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        """Return the model's answer.

        Raises:
            RolloutError: the server refused the request, or could not answer it in any attempt.
            ConfigError: the key is refused.
        """
        body = request.body(self._model)
        wait = self._options.retry_wait_s
        async with self._free:
            for attempt in range(self._options.retries + 1):
                try:
                    return await self._attempt(request.name, body)
                except _Unanswered as error:
                    if attempt == self._options.retries:
                        raise RolloutError(
                            f"{request.name}: {self._url} gave no answer in {attempt + 1} attempts; the last: "
                            f"{error}. For more attempts raise --remote.retries.",
                            code="remote/no-answer",
                        ) from error
                    await asyncio.sleep(max(wait, min(error.retry_after_s, _MAX_ASKED_S)))
                    wait = min(2.0 * wait, _MAX_WAIT_S)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, name: str, body: bytes) -> ChatAnswer:
        import httpx2

        assert self._http is not None
        limit = self._options.timeout_s
        try:
            async with (
                asyncio.timeout(limit),
                self._http.stream(
                    "POST",
                    f"{self._url}/chat/completions",
                    content=body,
                    headers={"content-type": "application/json"},
                ) as response,
            ):
                answer = await _read(response)
        except TimeoutError:
            raise _Unanswered(f"nothing came within {limit:g} s") from None
        except httpx2.HTTPError as error:
            raise _Unanswered(f"{type(error).__name__}: {error}") from error
        status = response.status_code
        self._refuse_key(status)
        if status in _RETRIED:
            seconds = response.headers.get("retry-after", "")
            raise _Unanswered(
                f"status {status}: {beginning(answer)}",
                float(seconds) if seconds.isdecimal() else 0.0,
            )
        if status != 200:
            raise RolloutError(
                f"{name}: {self._url} refused the request with status {status}: {beginning(answer)}",
                code="remote/refused",
            )
        try:
            return read_answer(answer)
        except UnreadableAnswer as error:
            raise _Unanswered(str(error)) from error

    def _refuse_key(self, status: int) -> None:
        if status in (401, 403):
            raise ConfigError(
                f"--remote.url {self._url}: the server asks for a key (status {status}). Put it into the environment "
                f"variable {self._options.key_variable}, or name another variable with --remote.key_variable.",
                code="remote/key",
            )

    def _check_model(self, body: bytes) -> None:
        """Refuse a name that is not in the server's list of models. A server need not have a list."""
        try:
            names = [str(entry["id"]) for entry in parse_json(body)["data"]]
        except (ValueError, KeyError, TypeError):
            return
        if names and self._model not in names:
            raise ConfigError(
                f"--remote.model {self._model}: expected a model of {self._url}, which has {', '.join(names[:10])}",
                code="remote/unknown-model",
            )


async def _read(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MAX_BYTES:
            raise RolloutError(
                f"{response.url}: an answer of more than {_MAX_BYTES} bytes",
                code="remote/answer-too-long",
            )
    return bytes(body)

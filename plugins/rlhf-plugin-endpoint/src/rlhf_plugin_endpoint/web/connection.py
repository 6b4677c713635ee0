"""One client's connection: bytes in, requests to the handler one after another, replies out.

Time is kept by the server's sweep, which calls ``expire`` about once a second; so thousands of connections need no
timer each. A refused body is read to its end or to a deadline before the connection closes, because a client that is
still sending would otherwise see a reset instead of the refusal.

uvicorn and aiohttp take 17 to 30 % more processor time a request, and bound neither how long a request may take to
arrive nor how long a reply may be left unread (docs/measurements.md, ``benchmarks/endpoint_servers.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

import httptools

from .exchange import EVENTS, Handler, HttpLimits, HttpReply, HttpRequest, Refusal, StreamReply

MAX_HEAD_BYTES = 64 * 1024
"""Bytes of a request's line and headers together."""
MAX_PIPELINED = 16
"""Requests that a client may send ahead of the reply to its first one."""

_HEAD_TOO_LARGE = f"the request's headers have more than {MAX_HEAD_BYTES} bytes"

log = logging.getLogger(__name__)


def reply_head(status: int, content_type: str, headers: str, keep_alive: bool) -> bytes:
    """Return the status line and the headers of a reply, the empty line included."""
    reason = HTTPStatus(status).phrase
    connection = "" if keep_alive else "connection: close\r\n"
    return (
        f"HTTP/1.1 {status} {reason}\r\ncontent-type: {content_type}\r\n{headers}{connection}\r\n"
    ).encode("latin-1")


class HttpConnection(asyncio.Protocol):
    """Protocol of one connection. The names of its parser's callbacks are those of httptools."""

    def __init__(
        self,
        handler: Handler,
        refusal: Refusal,
        limits: HttpLimits,
        clock: Callable[[], float],
        *,
        joined: Callable[[HttpConnection], bool],
        left: Callable[[HttpConnection], None],
    ) -> None:
        self._handler, self._refusal, self._limits, self._clock = handler, refusal, limits, clock
        self._joined, self._left = joined, left
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._waiting: deque[tuple[HttpRequest, bool]] = deque()
        """Requests that are complete, each with whether its client keeps the connection."""
        self._work: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._deadline: float | None = None
        self._closing = False
        """Nothing more is read, and nothing but what is written already is sent."""
        self._is_refused = False
        """Something came that is no request, so the request in work is the last one."""
        self._start_request()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._deadline = self._clock() + self._limits.idle_timeout_s
        if not self._joined(self):
            self._refuse(503, "the server has as many connections as it may have; try again")

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._deadline = None
        self._waiting.clear()
        self._writable.set()
        if self._work is not None:
            self._work.cancel()
        self._left(self)

    def pause_writing(self) -> None:
        self._writable.clear()
        self._deadline = self._clock() + self._limits.send_timeout_s

    def resume_writing(self) -> None:
        self._writable.set()
        self._deadline = None

    def data_received(self, data: bytes) -> None:
        if self._closing or self._is_refused:
            return
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, _Refused):
                self._refuse(cause.status, str(cause))
            else:
                self._refuse(400, f"this is no HTTP/1.1 request: {error}")
        else:
            if not self._has_head and self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, _HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        self._has_begun = True
        if self._work is None:
            self._deadline = self._clock() + self._limits.receive_timeout_s

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_head = True
        size = sum(len(name) + len(value) for name, value in self._headers.items())
        if size + len(self._url) > MAX_HEAD_BYTES:
            raise _Refused(431, _HEAD_TOO_LARGE)
        if self._parser.should_upgrade():
            raise _Refused(400, "this server speaks plain HTTP/1.1 and upgrades to nothing")
        declared = self._headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > self._limits.max_body_bytes:
            raise _Refused(413, self._too_large())
        if self._headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > self._limits.max_body_bytes:
            raise _Refused(413, self._too_large())

    def on_message_complete(self) -> None:
        path = self._url.partition(b"?")[0].decode("latin-1")
        request = HttpRequest(
            method=self._parser.get_method().decode("latin-1"),
            path=path,
            headers=self._headers,
            body=bytes(self._body),
        )
        self._waiting.append((request, self._parser.should_keep_alive()))
        self._start_request()
        if len(self._waiting) > MAX_PIPELINED:
            raise _Refused(400, f"more than {MAX_PIPELINED} requests were sent ahead of replies")
        if self._work is None:
            self._deadline = None
            self._work = asyncio.ensure_future(self._answer_all())

    def expire(self, now: float) -> None:
        """Close the connection if its deadline has passed."""
        if self._deadline is None or now < self._deadline:
            return
        if self._closing or not self._writable.is_set():
            # A transport that is closed would wait for its client to read what was sent.
            self._transport.abort()
        elif self._has_begun:
            self._refuse(408, f"the request did not arrive in {self._limits.receive_timeout_s:g} s")
        else:
            self._transport.close()

    def close(self) -> None:
        """Close at once, and cancel the request in work."""
        self._transport.abort()

    def _start_request(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._has_begun = False
        self._has_head = False
        self._head_bytes = 0

    async def _answer_all(self) -> None:
        while self._waiting and not self._closing:
            request, keep_alive = self._waiting.popleft()
            keep_alive = keep_alive and not self._is_refused
            try:
                reply = await self._handler(request)
            except Exception as error:
                log.exception("a request to %s failed", request.path.rpartition("/")[2])
                text = f"{type(error).__name__}: {error}"
                reply = self._refusal(500, request.path, text)
            if isinstance(reply, HttpReply):
                self._send(reply, keep_alive)
            else:
                await self._send_stream(reply, keep_alive)
            if not keep_alive or self._is_refused:
                self._finish()
                return
            await self._writable.wait()
        self._work = None
        if not self._closing:
            self._deadline = self._clock() + self._limits.idle_timeout_s

    def _finish(self) -> None:
        """Close once the client has read what was sent, or has had its time for it."""
        self._closing = True
        self._deadline = self._clock() + self._limits.send_timeout_s
        self._transport.close()

    def _send(self, reply: HttpReply, keep_alive: bool) -> None:
        extra = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
        head = reply_head(
            reply.status,
            reply.content_type,
            f"{extra}content-length: {len(reply.body)}\r\n",
            keep_alive,
        )
        self._transport.write(head + reply.body)

    async def _send_stream(self, reply: StreamReply, keep_alive: bool) -> None:
        cache = "cache-control: no-cache\r\n" if reply.content_type == EVENTS else ""
        head = reply_head(
            200, reply.content_type, f"{cache}transfer-encoding: chunked\r\n", keep_alive
        )
        try:
            async for part in reply.parts:
                self._transport.write(head + b"%x\r\n%b\r\n" % (len(part), part))
                head = b""
                await self._writable.wait()
        except Exception:
            # What was sent cannot be taken back: the client sees a stream without its end.
            log.exception("a stream failed")
            self._transport.abort()
            return
        self._transport.write(head + b"0\r\n\r\n")

    def _refuse(self, status: int, text: str) -> None:
        """Answer with an error, discard what the client still sends, and close. While a request is in work, its reply
        is the last one instead, as an error would come before it."""
        path = self._url.partition(b"?")[0].decode("latin-1")
        self._is_refused = True
        self._start_request()
        if self._work is not None:
            return
        self._send(self._refusal(status, path, text), keep_alive=False)
        self._closing = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._deadline = self._clock() + self._limits.send_timeout_s

    def _too_large(self) -> str:
        return (
            f"the request has more than the {self._limits.max_body_bytes} bytes that are allowed. Send less, or raise "
            "--rollout.endpoint.max_body_mib in the run"
        )


class _Refused(Exception):
    """A request that is refused while it arrives."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

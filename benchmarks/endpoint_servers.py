"""The endpoint behind three HTTP servers: its own on httptools, uvicorn, and aiohttp.web, all with the same handler.

    python benchmarks/endpoint_servers.py [--requests 8000] [--at-once 64] [--rounds 3]
    python benchmarks/endpoint_servers.py --tests uvicorn

The first form prints, for whole and for streamed answers: requests a second, the 50th and 99th percentile of seconds
between request and reply, the server's processor time a request (the median of rounds in which the servers take turns),
and resident memory of each idle connection. 64 clients keep their connections; the engine answers at once. The second
form runs the server's tests, ``tests/plugins/endpoint/test_connection.py``, against another server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import multiprocessing
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

import orjson
from aiohttp import web
from endpoint import InstantEngine, rss_mib
from uvicorn import Config, Server

import rlhf_plugin_endpoint.host as host_module
import rlhf_plugin_endpoint.web.server as server_module
from rlhf_core.contracts import RolloutContext, SamplingParams, Task, Uid
from rlhf_plugin_endpoint.config import EndpointConfig
from rlhf_plugin_endpoint.episode.session import EpisodeSession
from rlhf_plugin_endpoint.host import EndpointHost
from rlhf_plugin_endpoint.settings import http_limits, route_options, session_limits
from rlhf_plugin_endpoint.web.exchange import (
    Handler,
    HttpLimits,
    HttpReply,
    HttpRequest,
    Refusal,
)
from rlhf_testing.fakes import FakeRenderer

IDLE = 500
"""Connections that are opened and left alone, for memory."""
TURNS = 4
"""Requests of an episode."""
Message = dict[str, Any]

log = logging.getLogger(__name__)


class UvicornServer:
    """uvicorn with the parser of httptools: limits that it has are its own, the others the application's."""

    def __init__(self, handler: Handler, refusal: Refusal, limits: HttpLimits) -> None:
        self._handler, self._refusal, self._limits = handler, refusal, limits
        self._server = Server(
            Config(
                self._app,
                host="127.0.0.1",
                port=0,
                http="httptools",
                interface="asgi3",
                loop="asyncio",
                lifespan="off",
                ws="none",
                access_log=False,
                log_level="error",
                limit_concurrency=limits.max_connections,
                timeout_keep_alive=max(1, int(limits.idle_timeout_s)),
                timeout_graceful_shutdown=1,
            )
        )
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
        self._work: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        port: int = self._server.servers[0].sockets[0].getsockname()[1]
        return port

    @property
    def num_connections(self) -> int:
        return len(self._server.server_state.connections)

    async def start(self) -> None:
        self._work = asyncio.ensure_future(self._server.serve())
        while not self._server.started:
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        self._server.should_exit = True
        assert self._work is not None
        await self._work

    async def _app(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        body = bytearray()
        size, more = int(headers.get("content-length", "0")), True
        while more and size <= self._limits.max_body_bytes:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            size, more = max(size, len(body)), message["more_body"]
        if size > self._limits.max_body_bytes:
            refused = self._refusal(413, scope["path"], "too large")
            await self._whole(replace(refused, headers={"connection": "close"}), send)
            return
        request = HttpRequest(
            method=scope["method"], path=scope["path"], headers=headers, body=bytes(body)
        )
        # The application is not told of a client that went away: it has to listen beside its work.
        work = asyncio.ensure_future(self._answer(request, send))
        gone = asyncio.ensure_future(receive())
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not work.done():
            work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work

    async def _answer(
        self, request: HttpRequest, send: Callable[[Message], Awaitable[None]]
    ) -> None:
        try:
            reply = await self._handler(request)
        except Exception as error:
            log.exception("a request failed")
            text = f"{type(error).__name__}: {error}"
            reply = self._refusal(500, request.path, text)
        if isinstance(reply, HttpReply):
            await self._whole(reply, send)
            return
        head = [(b"content-type", reply.content_type.encode()), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        async for part in reply.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _whole(self, reply: HttpReply, send: Callable[[Message], Awaitable[None]]) -> None:
        head = [
            (b"content-type", reply.content_type.encode()),
            (b"content-length", str(len(reply.body)).encode()),
            *((name.encode(), value.encode()) for name, value in reply.headers.items()),
        ]
        await send({"type": "http.response.start", "status": reply.status, "headers": head})
        await send({"type": "http.response.body", "body": reply.body})


class AiohttpServer:
    """aiohttp's low-level server, which has no router; its parser is written in C."""

    def __init__(self, handler: Handler, refusal: Refusal, limits: HttpLimits) -> None:
        self._handler, self._refusal, self._limits = handler, refusal, limits
        self._server = web.Server(
            self._answer,
            keepalive_timeout=limits.idle_timeout_s,
            max_field_size=64 * 1024,
            handler_cancellation=True,
            access_log=None,
        )
        self._runner = web.ServerRunner(self._server, shutdown_timeout=1)
        self.port = 0

    @property
    def num_connections(self) -> int:
        return len(self._server.connections)

    async def start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if self.num_connections > self._limits.max_connections:
            refused = _response(self._refusal(503, request.path, "too many connections"))
            refused.force_close()
            return refused
        size, body, most = request.content_length or 0, bytearray(), self._limits.max_body_bytes
        while size <= most and (part := await request.content.readany()):
            body += part
            size = max(size, len(body))
        if size > most:
            refused = _response(self._refusal(413, request.path, "too large"))
            refused.force_close()
            return refused
        headers = {name.lower(): value for name, value in request.headers.items()}
        read = HttpRequest(
            method=request.method, path=request.path, headers=headers, body=bytes(body)
        )
        try:
            reply = await self._handler(read)
        except Exception as error:
            log.exception("a request failed")
            text = f"{type(error).__name__}: {error}"
            reply = self._refusal(500, request.path, text)
        if isinstance(reply, HttpReply):
            return _response(reply)
        stream = web.StreamResponse(
            headers={"content-type": reply.content_type, "cache-control": "no-cache"}
        )
        await stream.prepare(request)
        async for part in reply.parts:
            await stream.write(part)
        await stream.write_eof()
        return stream


def _response(reply: HttpReply) -> web.Response:
    head = {"content-type": reply.content_type, **reply.headers}
    return web.Response(status=reply.status, body=reply.body, headers=head)


SERVERS = {
    "own": server_module.HttpServer,
    "uvicorn": UvicornServer,
    "aiohttp": AiohttpServer,
}


async def serve(pipe: Connection, name: str, episodes: int, at_once: int) -> None:
    """Host all episodes, and send processor seconds and memory whenever the load asks for them."""
    host_module.HttpServer = SERVERS[name]  # type: ignore[assignment, misc]
    config = EndpointConfig(agent="unused:unused", max_connections=at_once + IDLE + 64)
    host = EndpointHost(http_limits(config), route_options(config))
    await host.start()
    context = RolloutContext(
        engine=InstantEngine(),
        renderer=FakeRenderer(),
        sampling=SamplingParams(max_new_tokens=64),
        max_length=100_000,
        seed=lambda sample, turn: turn,
    )
    with contextlib.ExitStack() as stack:
        addresses = []
        for number in range(episodes):
            uid = Uid(0, number)
            session = EpisodeSession(uid, Task(uid=uid), context, session_limits(config))
            address = stack.enter_context(host.hosting(session))
            addresses.append((address.root_url, address.api_key))
        pipe.send(addresses)
        over = asyncio.Event()

        def tell() -> None:
            if pipe.recv():
                pipe.send((time.process_time(), rss_mib()))
            else:
                over.set()

        asyncio.get_running_loop().add_reader(pipe.fileno(), tell)
        await over.wait()
    await host.close()


async def replies(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    address: tuple[str, str],
    stream: bool,
) -> AsyncIterator[float]:
    """Play one episode, and yield the seconds of each request."""
    parts = urlsplit(address[0])
    head = (
        f"POST {parts.path}/v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        f"authorization: Bearer {address[1]}\r\ncontent-type: application/json\r\ncontent-length: "
    ).encode()
    for turn in range(TURNS):
        messages = [{"role": "user", "content": f"question {turn} of an agent"}]
        body = orjson.dumps({"model": "policy", "messages": messages, "stream": stream})
        start = time.perf_counter()
        writer.write(head + str(len(body)).encode() + b"\r\n\r\n" + body)
        reply_head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not reply_head.startswith(b"http/1.1 200"):
            raise SystemExit(f"expected status 200, got {reply_head!r}")
        if stream:
            await reader.readuntil(b"\r\n0\r\n\r\n")
        else:
            length = reply_head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
        yield time.perf_counter() - start


async def load(
    pipe: Connection, addresses: list[tuple[str, str]], at_once: int, stream: bool
) -> tuple[float, float, list[float], float]:
    """Play the episodes: seconds, the server's processor seconds, seconds of each request, KiB an idle connection."""
    port = urlsplit(addresses[0][0]).port
    before_s, before_mib = ask(pipe)
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(IDLE)]
    await asyncio.sleep(0.2)
    _, idle_mib = ask(pipe)
    for _, writer in idle:
        writer.close()
    await asyncio.sleep(0.2)
    waits: list[float] = []
    left = iter(addresses)

    async def play_all() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for address in left:
            async for seconds in replies(reader, writer, address, stream):
                waits.append(seconds)
        writer.close()

    before_s, _ = ask(pipe)
    start = time.perf_counter()
    await asyncio.gather(*(play_all() for _ in range(at_once)))
    wall_s = time.perf_counter() - start
    after_s, _ = ask(pipe)
    return wall_s, after_s - before_s, waits, 1024 * (idle_mib - before_mib) / IDLE


def ask(pipe: Connection) -> tuple[float, float]:
    """Return the server's processor seconds and memory in MiB."""
    pipe.send(True)
    seconds, size = pipe.recv()
    return seconds, size


def run_server(pipe: Connection, name: str, episodes: int, at_once: int) -> None:
    asyncio.run(serve(pipe, name, episodes, at_once))


def measure(name: str, stream: bool, args: argparse.Namespace) -> tuple[float, ...]:
    """Return requests a second, p50 and p99 in ms, us of processor time a request, KiB an idle connection."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(
        daemon=True, target=run_server, args=(there, name, args.requests // TURNS, args.at_once)
    )
    process.start()
    wall_s, cpu_s, waits, idle_kib = asyncio.run(load(here, here.recv(), args.at_once, stream))
    here.send(False)
    process.join()
    waits.sort()
    number = len(waits)
    p50, p99 = (1e3 * waits[int(share * number)] for share in (0.5, 0.99))
    return number / wall_s, p50, p99, 1e6 * cpu_s / number, idle_kib


def run_tests(name: str) -> int:
    """Return the exit status of the server's tests, against another server; what hangs fails after 10 seconds."""
    import pytest
    from tests import deadlines

    deadlines.HANG_S = 10.0
    server_module.HttpServer = SERVERS[name]  # type: ignore[assignment, misc]
    # What pytest wants to see imported, is imported already.
    early = ("-o", "addopts=", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    tests = "tests/plugins/endpoint/test_connection.py"
    return int(pytest.main(["-q", "-p", "no:cacheprovider", "--tb=line", *early, tests]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tests", choices=tuple(SERVERS))
    args = parser.parse_args()
    if args.tests:
        raise SystemExit(run_tests(args.tests))
    for stream in (False, True):
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in SERVERS}
        for _ in range(args.rounds):
            for name in SERVERS:
                found[name].append(measure(name, stream, args))
        for name, rows in found.items():
            rate, p50, p99, cpu, idle = (
                statistics.median(column) for column in zip(*rows, strict=True)
            )
            print(
                f"{'streamed' if stream else 'whole':>8} {name:>8}: {rate:.0f} requests/s, p50 {p50:.1f} ms, "
                f"p99 {p99:.1f} ms, {cpu:.0f} us of the server a request, {idle:.1f} KiB an idle connection"
            )


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    main()

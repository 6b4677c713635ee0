"""The HTTP server by itself: what clients do to it, and what it owes them."""

import asyncio
import contextlib

import pytest
from tests.deadlines import HANG_S

from rlhf_plugin_endpoint.web.exchange import HttpLimits, HttpReply, StreamReply
from rlhf_plugin_endpoint.web.server import HttpServer

LIMITS = dict(
    max_body_bytes=1000,
    max_connections=20,
    receive_timeout_s=HANG_S,
    idle_timeout_s=HANG_S,
    send_timeout_s=HANG_S,
)


async def echo(request):
    text = f"{request.method} {request.path} {request.body.decode('latin-1')}"
    return HttpReply(body=text.encode(), content_type="text/plain")


def refusal(status, path, text):
    return HttpReply(status=status, body=text.encode())


def serving(visit, handler=echo, **limits):
    """Run ``visit(server)`` beside a server."""

    async def run():
        server = HttpServer(handler, refusal, HttpLimits(**{**LIMITS, **limits}))
        await server.start()
        try:
            return await asyncio.wait_for(visit(server), HANG_S)
        finally:
            await server.close()

    return asyncio.run(run())


@contextlib.asynccontextmanager
async def connected(server):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def post(body, *headers):
    lines = ["POST /x?q=1 HTTP/1.1", "host: a", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def exchange(server, data):
    """Send data, and return all that comes until the server closes."""
    async with connected(server) as (reader, writer):
        writer.write(data)
        return await reader.read()


def test_requests_on_one_connection_are_answered_in_order():
    async def visit(server):
        async with connected(server) as (reader, writer):
            for text in (b"one", b"two"):
                writer.write(post(text))
            writer.write(post(b"three", "connection: close"))
            return await reader.read()

    reply = serving(visit)

    assert [reply.find(text) > 0 for text in (b"POST /x one", b"POST /x two", b"POST /x three")]
    assert reply.count(b"HTTP/1.1 200 OK") == 3
    assert reply.index(b"one") < reply.index(b"two") < reply.index(b"three")


def test_a_request_may_come_byte_by_byte():
    async def visit(server):
        async with connected(server) as (reader, writer):
            for byte in post(b"slow", "connection: close"):
                writer.write(bytes([byte]))
                await writer.drain()
            return await reader.read()

    assert serving(visit).endswith(b"POST /x slow")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\ncontent-length: 5000\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n500\r\n" + b"x" * 1280, b"413"),
        (b"GET / HTTP/1.1\r\n" + b"a: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n", b"400"),
    ],
)
def test_what_is_refused_is_told_and_the_connection_closed(data, status):
    async def visit(server):
        async with connected(server) as (reader, writer):
            writer.write(data)
            return await reader.read()

    assert serving(visit).split(b" ")[1] == status


def test_a_request_that_never_ends_is_refused_in_time():
    reply = serving(
        lambda server: exchange(server, b"POST / HTTP/1.1\r\ncontent-le"), receive_timeout_s=0.2
    )

    assert b" 408 " in reply


def test_an_idle_connection_is_closed_in_time():
    assert serving(lambda server: exchange(server, b""), idle_timeout_s=0.2) == b""


def test_more_connections_than_allowed_are_refused():
    async def visit(server):
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(connected(server))
            return await exchange(server, post(b""))

    assert b" 503 " in serving(visit, max_connections=3)


def test_half_open_connections_are_not_kept():
    async def visit(server):
        for _ in range(50):
            async with connected(server) as (_, writer):
                writer.write(b"POST / HTTP/1.1\r\n")
        while server.num_connections:
            await asyncio.sleep(0.01)

    serving(visit)


def test_a_handler_that_raises_is_an_error_of_the_server(caplog):
    async def handler(request):
        raise ValueError("a bug")

    reply = serving(lambda server: exchange(server, post(b"", "connection: close")), handler)

    assert b" 500 " in reply
    assert b"ValueError: a bug" in reply
    assert "failed" in caplog.text


def test_a_handler_is_cancelled_when_its_client_goes_away():
    cancelled = asyncio.Event()

    async def handler(request):
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    started = asyncio.Event()

    async def visit(server):
        async with connected(server) as (_, writer):
            writer.write(post(b""))
            await started.wait()
        await cancelled.wait()

    serving(visit, handler)


def test_a_client_that_reads_nothing_is_given_up():
    async def handler(request):
        return StreamReply(parts=parts())

    async def parts():
        for _ in range(2000):
            yield b"x" * 65536

    async def visit(server):
        async with connected(server) as (_, writer):
            writer.write(post(b""))
            while not server.num_connections:
                await asyncio.sleep(0.01)
            while server.num_connections:
                await asyncio.sleep(0.01)

    serving(visit, handler, send_timeout_s=0.2)

"""The web application of ``rlhf serve-rm``: checks of the token and the size of a request, and statuses of answers."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Callable, Sequence, Sized
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rlhf_core import RewardError

from . import protocol
from .batcher import Batcher, Full
from .protocol import BadRequest, ScoreRequest
from .stopping import ServerEnd, unless

BODY_TIMEOUT_S = 60.0
"""Seconds for a client to send a whole request."""

log = logging.getLogger(__name__)

TokenizeFunction = Callable[[ScoreRequest], Sequence[Sized]]
"""Function that returns each sequence of a request, as the batcher's score function takes it."""


class _Refused(Exception):
    """A request that is refused with a status and a line of text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def make_app(
    batcher: Batcher,
    tokenize: TokenizeFunction,
    *,
    token: str | None,
    max_body_bytes: int,
    request_timeout_s: float,
    stop: ServerEnd,
) -> Starlette:
    """Return the application, which starts and closes the batcher.

    Args:
        batcher: computes the scores.
        tokenize: returns the sequences of a request, or raises BadRequest or RewardError.
        token: token that requests have to carry as ``Authorization: Bearer``; None requires no token.
        max_body_bytes: size of the largest request.
        request_timeout_s: seconds for one request, waiting included.
        stop: told when the server ends; requests that have not been sent whole by then are refused.
    """
    ends = _Refused(503, "the server stops")

    async def get_reward(request: Request) -> Response:
        try:
            _check_token(request, token)
            body = await unless(_read_body(request, max_body_bytes), {ends: stop.asked()})
            async with asyncio.timeout(request_timeout_s):
                watched = {ends: stop.over(), ClientDisconnect(): _gone(request)}
                scores = await unless(_scores(body), watched)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except _Refused as error:
            return _error(error.status, str(error))
        except BadRequest as error:
            return _error(400, str(error))
        except Full as error:
            return _error(503, str(error), {"Retry-After": "1"})
        except TimeoutError:
            return _error(503, f"not scored within {request_timeout_s:g} s", {"Retry-After": "1"})
        except RewardError as error:
            return _error(422, str(error))
        except Exception as error:
            log.exception("a request failed")
            return _error(500, f"{type(error).__name__}: {error}")
        return JSONResponse(protocol.answer(scores))

    async def _scores(body: bytes) -> list[float]:
        # In a thread, because tokenizing a large request would delay all other requests.
        sequences = await asyncio.to_thread(lambda: tokenize(protocol.read_request(body)))
        scores = await batcher.submit(sequences)
        for index, score in enumerate(scores):
            if isinstance(score, RewardError):
                raise RewardError(f"query {index}: {score}", code="reward-model/server")
        return [score for score in scores if not isinstance(score, RewardError)]

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "waiting": batcher.num_waiting})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        batcher.start()
        try:
            yield
        finally:
            await batcher.close()

    routes = [
        Route(protocol.PATH, get_reward, methods=["POST"]),
        Route("/health", health, methods=["GET"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def _check_token(request: Request, token: str | None) -> None:
    if token is None:
        return
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not hmac.compare_digest(given.encode(), token.encode()):
        raise _Refused(401, "expected the server's token as 'Authorization: Bearer TOKEN'")


async def _gone(request: Request) -> None:
    """Return once the client of a request that was read whole has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _read_body(request: Request, limit: int) -> bytes:
    too_large = _Refused(413, f"the request has more than the {limit} bytes that are allowed")
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        raise _Refused(408, f"the request was not sent within {BODY_TIMEOUT_S:g} s") from None
    return bytes(body)


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, status_code=status, headers=headers)

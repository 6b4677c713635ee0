"""One request to a server, and its answer as JSON, within a time and a size."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from rlhf_core import RolloutError
from rlhf_core.outside.json_reader import BrokenJson, parse_json

from .address import Address

_CHUNK_BYTES = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of an answer."""

    answer_s: float
    """Seconds for an answer."""
    max_bytes: int
    """Largest answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer."""

    status: int
    body: Any
    """Its JSON; None for a status that is not 200."""


def request(address: Address, method: str, path: str, limits: Limits, body: Any = None) -> Reply:
    """Return the server's answer. It blocks, at most for the time that the limits give.

    Raises:
        OSError: no connection.
        RolloutError: the answer took too long, is too large, or is no JSON.
    """
    kind = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
    connection = kind(address.host, address.port, timeout=limits.answer_s)
    connection.connect()
    # The socket's own time-out counts anew at each byte, so a server that sends one now and then has to be cut off.
    late = threading.Event()
    timer = threading.Timer(limits.answer_s, _cut, (connection, late))
    timer.daemon = True
    timer.start()
    try:
        headers = {"Content-Type": "application/json", **address.headers}
        sent = None if body is None else json.dumps(body).encode()
        connection.request(method, f"{address.path}{path}", body=sent, headers=headers)
        # The answer holds the socket open beside the connection.
        with closing(connection.getresponse()) as answer:
            raw = _read(answer, limits.max_bytes)
    except (OSError, http.client.HTTPException) as error:
        if late.is_set() or isinstance(error, TimeoutError):
            raise RolloutError(
                f"did not answer {method} {path} within {limits.answer_s:g} s",
                code="environment/too-slow",
            ) from error
        raise RolloutError(
            f"broke off its answer to {method} {path} ({type(error).__name__}: {error})",
            code="environment/unreachable",
        ) from error
    finally:
        timer.cancel()
        connection.close()
    if answer.status != 200:
        return Reply(status=answer.status, body=None)
    return Reply(status=200, body=parsed(raw, f"{method} {path}"))


def parsed(raw: bytes | str, what: str) -> Any:
    """Return a JSON text's value.

    Raises:
        RolloutError: it is no JSON, has numbers that are not finite, or is nested too deep.
    """
    try:
        return parse_json(raw, finite=True)
    except BrokenJson as error:
        raise RolloutError(
            f"answered {what} with what is no JSON ({error!s:.200})",
            code="environment/no-json",
        ) from error


def _read(answer: http.client.HTTPResponse, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    total = 0
    while chunk := answer.read1(_CHUNK_BYTES):
        parts.append(chunk)
        total += len(chunk)
        if total > max_bytes:
            raise RolloutError(
                f"sent an answer of more than {max_bytes / 2**20:g} MiB",
                code="environment/large-answer",
            )
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    return b"".join(parts)


def _cut(connection: http.client.HTTPConnection, late: threading.Event) -> None:
    late.set()
    line = connection.sock
    if line is not None:
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)

"""One HTTP request to a reward server, with an error class for each way to go on after a failure."""

from __future__ import annotations

import asyncio

import httpx2

MAX_ANSWER_BYTES = 64 * 2**20
"""Largest answer that is read."""
SHOWN = 200
"""Number of characters of a body that messages repeat."""

_BUSY = 429
_RETRIED = frozenset({408, 425, _BUSY, 502, 503, 504})
"""Statuses by which a server, or a proxy before it, says that it did not do the work. For 500 see ``PerSample``."""
_PER_SAMPLE = frozenset({400, 413, 422, 500})
"""Statuses that a single sample of a request may cause."""


class FailedRequest(Exception):
    """A request without scores. The text names the address and describes the answer."""


class Unanswered(FailedRequest):
    """The server could not be reached, did not answer in time, or was not able to work.

    Scoring has no side effects, so the request may be repeated.
    """

    def __init__(self, text: str, *, retry_after_s: float = 0.0, busy: bool = False) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
        """Seconds that the server asks the client to wait; 0 if it does not ask."""
        self.busy = busy
        """True if the server works, but has too many requests."""


class PerSample(FailedRequest):
    """The server refused the request, possibly because of one of its samples."""

    def __init__(self, text: str, *, status: int) -> None:
        super().__init__(text)
        self.status = status


async def post(client: httpx2.AsyncClient, url: str, body: bytes, limit_s: float) -> bytes:
    """Return the body of the answer to a request.

    Args:
        limit_s: seconds for the whole request.

    Raises:
        FailedRequest: no answer with status 200 came; the subclass tells whether to repeat or divide the request.
    """
    try:
        # The library's own time limits hold for single operations, such as one read.
        async with asyncio.timeout(limit_s), client.stream("POST", url, content=body) as response:
            answer = await _read(url, response)
    except TimeoutError:
        raise Unanswered(f"{url}: no answer within {limit_s:.3g} s") from None
    except httpx2.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise Unanswered(f"{url}: {reason} ({type(error).__name__})") from error
    status = response.status_code
    if status == 200:
        return answer
    text = f"{url}: status {status}{_advice(response)}: {beginning(answer)}"
    if status in _RETRIED:
        raise Unanswered(text, retry_after_s=_retry_after_s(response), busy=status == _BUSY)
    if status in _PER_SAMPLE:
        raise PerSample(text, status=status)
    raise FailedRequest(text)


def beginning(body: bytes) -> str:
    """Return the first characters of a body, on one line."""
    text = " ".join(body[: 4 * SHOWN].decode(errors="replace").split())
    return (text if len(text) <= SHOWN else text[:SHOWN] + "...") or "an empty body"


async def _read(url: str, response: httpx2.Response) -> bytes:
    answer = bytearray()
    async for chunk in response.aiter_bytes():
        answer += chunk
        if len(answer) > MAX_ANSWER_BYTES:
            raise FailedRequest(f"{url}: an answer of more than {MAX_ANSWER_BYTES} bytes")
    return bytes(answer)


def _advice(response: httpx2.Response) -> str:
    if response.status_code in (401, 403):
        return " (set the variable that token_env names, by default RLHF_REWARD_TOKEN, to the server's token)"
    if response.is_redirect:
        return f" (it has moved to {response.headers.get('location')}; give that address)"
    return ""


def _retry_after_s(response: httpx2.Response) -> float:
    seconds = response.headers.get("retry-after", "")
    return float(seconds) if seconds.isdecimal() else 0.0

"""The reward ``http``: sends several requests for scores to servers at a time, within one deadline.

A failure concerns the samples of its own request only. A request that a server refuses (status 400, 413, 422, 500) is
divided in halves, until the guilty sample is in a request of its own. A request without an answer is repeated, to
another server if there is one.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence

import httpx2

from rlhf_core import RewardError
from rlhf_core.contracts import RewardRequest, RewardResult

from ..config import HttpConfig
from .client import FailedRequest, PerSample, Unanswered, beginning, post
from .protocol import BadAnswer, body_of, results_of
from .reachable import wait_for_a_server
from .servers import Server, Servers

POLL_S = 0.02
"""Seconds between two looks for a server while another request tries the only server that is left."""

Results = list[RewardResult | RewardError]


class HttpReward:
    """Asks servers for scores. The servers' failures are remembered between batches, and connections are closed.

    Raises:
        RewardError: no server can be reached. With ``use_proxy`` this is not checked.
    """

    def __init__(self, config: HttpConfig) -> None:
        if not config.use_proxy:
            wait_for_a_server(config.urls, config.deadline_s)
        self._config = config
        self._servers = Servers(
            config.urls,
            least_loaded=config.choose == "least_loaded",
            failures=config.breaker_failures,
            pause_s=config.breaker_pause_s,
        )
        token = os.environ.get(config.token_env, "").strip()
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    async def score(self, requests: Sequence[RewardRequest]) -> Sequence[RewardResult | Exception]:
        """Return each sample's reward, or an error with the reason why it has none, within ``deadline_s``."""
        config = self._config
        size = config.batch_size
        parts = [requests[start : start + size] for start in range(0, len(requests), size)]
        async with httpx2.AsyncClient(
            headers=self._headers,
            timeout=None,  # ``post`` limits the time of a whole request
            trust_env=config.use_proxy,
            limits=httpx2.Limits(max_connections=config.concurrency),
        ) as client:
            batch = _Batch(config, self._servers, client)
            answers = await asyncio.gather(*(batch.results(part) for part in parts))
        return [result for answer in answers for result in answer]


class _Batch:
    """The deadline and the connections of one call of ``score``."""

    def __init__(self, config: HttpConfig, servers: Servers, client: httpx2.AsyncClient) -> None:
        self._config = config
        self._servers = servers
        self._client = client
        self._slots = asyncio.Semaphore(config.concurrency)
        self._end = _now() + config.deadline_s

    async def results(self, requests: Sequence[RewardRequest]) -> Results:
        """Return the results of some samples; for a sample without a score, an error."""
        config = self._config
        try:
            body = body_of(
                requests, label_key=config.label_key, with_token_ids=config.send_token_ids
            )
            return await self._ask(requests, body)
        except (PerSample, RewardError) as error:
            if len(requests) == 1:
                return [RewardError(str(error), code="reward/remote")]
        except FailedRequest as error:
            return [RewardError(str(error), code="reward/remote") for _ in requests]
        half = len(requests) // 2
        first, second = await asyncio.gather(
            self.results(requests[:half]), self.results(requests[half:])
        )
        return first + second

    async def _ask(self, requests: Sequence[RewardRequest], body: bytes) -> Results:
        """Send a request until a server answers, at most ``max_tries`` times, and return the samples' results."""
        failed: Server | None = None
        num_tries = 0
        while True:
            async with self._slots:
                server = await self._free_server(failed)
                try:
                    return await self._try(server, requests, body)
                except Unanswered as error:
                    failure: FailedRequest = error
                    pause_s = error.retry_after_s
                except PerSample as error:
                    # With several samples, one may have caused the refusal. With a single sample, status 500 may have
                    # another cause, so the request is repeated.
                    if len(requests) > 1 or error.status != 500:
                        raise
                    failure, pause_s = error, 0.0
            failed = server
            num_tries += 1
            pause_s = max(pause_s, pause_before(num_tries, requests[0].uid, self._config))
            if num_tries >= self._config.max_tries:
                raise FailedRequest(f"{failure} (asked {num_tries} times)") from failure
            if self._left_s() <= pause_s:
                raise FailedRequest(f"{failure} ({self._out_of_time()})") from failure
            await asyncio.sleep(pause_s)

    async def _try(self, server: Server, requests: Sequence[RewardRequest], body: bytes) -> Results:
        limit_s = max(0.0, min(self._config.request_timeout_s, self._left_s()))
        try:
            answer = await post(self._client, server.url, body, limit_s)
        except Unanswered as error:
            if not error.busy:
                self._servers.failed(server, str(error).removeprefix(f"{server.url}: "), _now())
            raise
        except FailedRequest:
            self._servers.answered(server)
            raise
        finally:
            server.in_flight -= 1
        self._servers.answered(server)
        try:
            return results_of(answer, len(requests))
        except BadAnswer as error:
            raise FailedRequest(f"{server.url} answered {error}: {beginning(answer)}") from error

    async def _free_server(self, failed: Server | None) -> Server:
        """Wait for a server that may get a request, and count this request as in flight there."""
        if self._left_s() <= 0.0:
            raise FailedRequest(
                f"not asked, because earlier requests took all of deadline_s = {self._config.deadline_s:g}"
            )
        while (server := self._servers.choose(_now(), avoid=failed)) is None:
            wait_s = max(self._servers.wait_s(_now()), POLL_S)
            if wait_s >= self._left_s():
                raise FailedRequest(
                    f"no reward server answers ({self._out_of_time()}): {self._servers.report(_now())}"
                )
            await asyncio.sleep(wait_s)
        return server

    def _left_s(self) -> float:
        return self._end - _now()

    def _out_of_time(self) -> str:
        return f"deadline_s = {self._config.deadline_s:g} allows no further try"


def pause_before(num_tries: int, uid: str, config: HttpConfig) -> float:
    """Return the seconds to wait after ``num_tries`` tries of the request whose first sample is ``uid``.

    ``min(max_backoff_s, backoff_s * 2^(num_tries - 1)) * u``, with u uniform between 0.5 and 1.5.
    """
    mean = min(config.max_backoff_s, config.backoff_s * 2.0 ** min(num_tries - 1, 60))
    # Each pause has a random stream of its own, so that it does not depend on other requests, and needs no state.
    return mean * random.Random(f"{config.seed}/{uid}/{num_tries}").uniform(0.5, 1.5)


def _now() -> float:
    return time.monotonic()

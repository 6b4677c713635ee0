"""A check that some reward server can be reached, made before a run loads its models."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from rlhf_core import RewardError

CONNECT_S = 3.0
"""Seconds for one attempt to connect."""
POLL_S = 0.25
"""Seconds between two rounds of attempts. A server that was started together with the run may still be starting."""

_PORTS = {"http": 80, "https": 443}


def wait_for_a_server(urls: Sequence[str], limit_s: float) -> None:
    """Return when one of the addresses accepts connections.

    Args:
        limit_s: seconds for all rounds of attempts.

    Raises:
        RewardError: no address accepted a connection within the limit; gives the reason for each address.
    """
    end = time.monotonic() + limit_s
    while True:
        problems = []
        for url in urls:
            problem = _problem(url, min(CONNECT_S, max(0.1, end - time.monotonic())))
            if problem is None:
                return
            problems.append(f"{url}: {problem}")
        if time.monotonic() + POLL_S >= end:
            raise RewardError(
                f"no reward server can be reached (tried for deadline_s = {limit_s:g}): {'; '.join(problems)}. "
                "Start one, or correct urls",
                code="reward/unreachable",
            )
        time.sleep(POLL_S)


def _problem(url: str, limit_s: float) -> str | None:
    parts = urlsplit(url)
    assert parts.hostname is not None
    try:
        with socket.create_connection(
            (parts.hostname, parts.port or _PORTS[parts.scheme]), timeout=limit_s
        ):
            return None
    except OSError as error:
        return error.strerror or str(error)

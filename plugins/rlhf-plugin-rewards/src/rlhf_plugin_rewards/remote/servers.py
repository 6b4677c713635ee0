"""The servers of a reward: the choice of the server for the next request, with a circuit breaker for each server.

A server that failed ``failures`` times in a row gets no requests for ``pause_s``. Then one request tries the server. If
the server answers, it gets requests as before; if not, it gets none for another pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Server:
    """One address, with its requests and failures."""

    url: str
    in_flight: int = 0
    """Number of requests in flight."""
    num_failures: int = 0
    """Number of failures in a row."""
    closed_until: float = 0.0
    """Time, in seconds, until which the server gets no requests."""
    last_error: str = ""
    """Reason of the last failure."""


class Servers:
    """All servers of a reward. All times are of one monotonic clock, in seconds.

    Args:
        least_loaded: True chooses the server with the fewest requests in flight, False each server in turn.
        failures: number of failures in a row after which a server gets no requests.
        pause_s: seconds in which such a server gets no requests.
    """

    def __init__(
        self, urls: Sequence[str], *, least_loaded: bool, failures: int, pause_s: float
    ) -> None:
        self._servers = [Server(url) for url in urls]
        self._least_loaded = least_loaded
        self._failures = failures
        self._pause_s = pause_s
        self._next = 0

    def choose(self, now: float, *, avoid: Server | None = None) -> Server | None:
        """Return the server for a request, and count the request as in flight; None if no server may get one now.

        Args:
            avoid: server that has just failed, which is chosen only if there is no other.
        """
        order = self._servers[self._next :] + self._servers[: self._next]
        usable = [server for server in order if self._usable(server, now)]
        usable = [server for server in usable if server is not avoid] or usable
        if not usable:
            return None
        chosen = usable[0]
        if self._least_loaded:
            chosen = min(usable, key=lambda server: server.in_flight)  # the first of equals
        self._next = (self._servers.index(chosen) + 1) % len(self._servers)
        chosen.in_flight += 1
        return chosen

    def answered(self, server: Server) -> None:
        """Note that the server answered a request, with any status."""
        server.num_failures, server.closed_until = 0, 0.0

    def failed(self, server: Server, why: str, now: float) -> None:
        """Note that the server did not answer a request.

        Args:
            why: reason, for messages.
        """
        server.num_failures += 1
        server.last_error = why
        if server.num_failures >= self._failures:
            server.closed_until = now + self._pause_s

    def wait_s(self, now: float) -> float:
        """Return the seconds until some server may get a request; 0 if one may now, or if one is being tried."""
        return max(0.0, min(server.closed_until for server in self._servers) - now)

    def report(self, now: float) -> str:
        """Return a text about each server's failures, for a message."""
        return "; ".join(self._said(server, now) for server in self._servers)

    def _usable(self, server: Server, now: float) -> bool:
        if now < server.closed_until:
            return False
        # After its pause a server gets one request at first.
        return server.num_failures < self._failures or server.in_flight == 0

    def _said(self, server: Server, now: float) -> str:
        if not server.num_failures:
            return f"{server.url}: no failure"
        times = f"{server.num_failures} in a row" if server.num_failures > 1 else "once"
        text = f"{server.url}: {server.last_error} ({times}"
        pause = server.closed_until - now
        return text + (f", left alone for another {pause:.1f} s)" if pause > 0 else ")")

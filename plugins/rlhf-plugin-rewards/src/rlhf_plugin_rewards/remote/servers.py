"""The servers of a reward: which one is asked next, and which are left alone for a while (circuit breakers).

A server that failed ``failures`` times in a row is closed to requests for ``pause_s``. Then one request tries it: if
that is answered the server is as good as new, if not it is closed for another pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Server:
    """One address and how it has been doing."""

    url: str
    in_flight: int = 0
    num_failures: int = 0
    """In a row."""
    closed_until: float = 0.0
    last_error: str = ""


class Servers:
    """All servers of a reward. Times are those of one monotonic clock, in seconds."""

    def __init__(
        self, urls: Sequence[str], *, least_loaded: bool, failures: int, pause_s: float
    ) -> None:
        self._servers = [Server(url) for url in urls]
        self._least_loaded = least_loaded
        self._failures = failures
        self._pause_s = pause_s
        self._next = 0

    def choose(self, now: float, *, avoid: Server | None = None) -> Server | None:
        """Return the server to ask and count the request as in flight; None if none may be asked now.

        Args:
            avoid: not this one if there is another, because it has just failed.
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
        """A request came back, whatever it says."""
        server.num_failures, server.closed_until = 0, 0.0

    def failed(self, server: Server, why: str, now: float) -> None:
        """A request was not answered."""
        server.num_failures += 1
        server.last_error = why
        if server.num_failures >= self._failures:
            server.closed_until = now + self._pause_s

    def wait_s(self, now: float) -> float:
        """Seconds until some server may be asked; 0 if one may be now or is being tried."""
        return max(0.0, min(server.closed_until for server in self._servers) - now)

    def report(self, now: float) -> str:
        """How each server is doing, for a message."""
        return "; ".join(self._said(server, now) for server in self._servers)

    def _usable(self, server: Server, now: float) -> bool:
        if now < server.closed_until:
            return False
        # After its pause a server gets a single request at first.
        return server.num_failures < self._failures or server.in_flight == 0

    def _said(self, server: Server, now: float) -> str:
        if not server.num_failures:
            return f"{server.url}: no failure"
        times = f"{server.num_failures} in a row" if server.num_failures > 1 else "once"
        text = f"{server.url}: {server.last_error} ({times}"
        pause = server.closed_until - now
        return text + (f", left alone for another {pause:.1f} s)" if pause > 0 else ")")

"""Requests that were refused: an agent that swallows what its client raises would never say why it got nowhere."""

from __future__ import annotations

from ..dialects.problems import RequestProblem

SHOWN = 300
"""Characters of a problem that a message shows."""


class Refusals:
    """Account of an episode's refused requests."""

    def __init__(self) -> None:
        self.count = 0
        self._last = ""

    def note(self, route: str, problem: RequestProblem) -> None:
        """Count a refusal, and keep what it said."""
        self.count += 1
        text = str(problem)
        shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
        self._last = f"{route[:80]}, {problem.status} {problem.code}: {shown}"

    def __str__(self) -> str:
        """Return how many there were, and what the last one was about; empty: there were none."""
        if not self.count:
            return ""
        if self.count == 1:
            return f"one request was refused ({self._last})"
        return f"{self.count} requests were refused, the last one with {self._last}"

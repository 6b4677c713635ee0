"""A scenario, and what one needs: an open episode, a client, and the policy's record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..adapter import CapturedTrace, EndpointUnderTest, OpenEpisode
from ..checks import check_exact, check_paths
from ..client import EpisodeClient
from ..policy import Script, ScriptedPolicy

WEATHER: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
"""A tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One promise, and how it is tried."""

    name: str
    promise: str
    play: Callable[[EndpointUnderTest], None]
    """Raises ``Nonconforming``, or what the endpoint's answers lead to, if the promise does not hold."""


def promise(text: str) -> Callable[[Callable[[EndpointUnderTest], None]], Scenario]:
    """Return a decorator that makes a function the scenario of its name.

    Args:
        text: the promise that the function tries.
    """
    return lambda play: Scenario(name=play.__name__, promise=text, play=play)


@dataclass(slots=True, kw_only=True)
class Scene:
    """One episode of a scenario."""

    client: EpisodeClient
    policy: ScriptedPolicy
    episode: OpenEpisode

    def check(self, *, paths: int | None = None) -> CapturedTrace:
        """End the episode, check that each answer trains once as it was sampled, and return the trace.

        Args:
            paths: number of conversations that have to be told apart; None: any.
        """
        trace = self.episode.finish()
        check_exact(trace, self.policy.record)
        if paths is not None:
            check_paths(trace, paths)
        return trace


@contextmanager
def scene(
    endpoint: EndpointUnderTest, script: Script, *, delay_s: float = 0.0, fails: bool = False
) -> Iterator[Scene]:
    """Open an episode whose policy writes by a script."""
    policy = ScriptedPolicy(script, delay_s=delay_s, fails=fails)
    with endpoint.episode(policy) as episode:
        yield Scene(client=EpisodeClient(episode), policy=policy, episode=episode)


@contextmanager
def held_scene(endpoint: EndpointUnderTest, script: Script, *, delay_s: float) -> Iterator[Scene]:
    """Open an episode whose policy answers ``delay_s`` after ``policy.let_go`` is set."""
    with scene(endpoint, script, delay_s=delay_s) as play:
        play.policy.let_go.clear()
        try:
            yield play
        finally:
            play.policy.let_go.set()


def user(text: str) -> dict[str, Any]:
    """Return a user's message."""
    return {"role": "user", "content": text}


def call(name: str, arguments: str) -> str:
    """Return a tool call as the policy writes it."""
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def result_of(tool_call: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the message that answers a tool call."""
    return {"role": "tool", "tool_call_id": tool_call["id"], "content": text}

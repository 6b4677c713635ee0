"""Rewards that an agent gave to single requests or to the agents that asked, as rewards of turns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rlhf_episodes import EpisodeGraph, RequestNode

from ..agents.outcome import AgentFailure, AgentOutcome

_ID = re.compile(r"(?:chatcmpl-|cmpl-|resp_|msg_)?([0-9a-f]{24})")
"""Id of a reply in any dialect, and in it the name of its first answer."""


def credit(
    graph: EpisodeGraph, replies: Mapping[str, Sequence[RequestNode]], outcome: AgentOutcome
) -> None:
    """Add to the rewards of turns: a request's on its own answer, an agent's on the last answer to that agent, and a
    role's on the last answer to each agent of that role.

    Args:
        replies: the answers of each reply, by the name of its first one.

    Raises:
        AgentFailure: a reply or an agent is none of this episode's, or a reply has another number of answers.
    """
    earned: list[tuple[RequestNode, float]] = []
    for reply, rewards in outcome.request_rewards.items():
        found = _ID.fullmatch(reply)
        nodes = replies.get(found[1], ()) if found else ()
        if not nodes:
            raise AgentFailure(
                f"returned request_rewards for {reply[:80]!r}, which is no reply of this episode; expected the id of "
                "one, as chatcmpl-..., resp_... or msg_..."
            )
        if len(rewards) != len(nodes):
            raise AgentFailure(
                f"returned {len(rewards)} request_rewards for {reply}, which has {len(nodes)} answers; expected one "
                "number for each"
            )
        earned += zip(nodes, rewards, strict=True)
    last = {node.agent: node for node in graph.nodes}
    for name, reward in outcome.agent_rewards.items():
        meant = [name] if name in last else [agent for agent in last if _role_of(agent) == name]
        if not meant:
            raise AgentFailure(
                f"returned agent_rewards for {name[:80]!r}, which never got an answer; those that did are "
                f"{', '.join(map(repr, sorted(last)))} (the header X-RLHF-Agent names who asks, as NAME or ROLE/NAME)"
            )
        earned += [(last[agent], reward) for agent in meant]
    for node, reward in earned:
        graph.reward(node, reward)


def _role_of(agent: str) -> str:
    """Return the role in an agent's name, as ``critic`` of ``critic/2``; empty: the name has none."""
    return agent.rpartition("/")[0]

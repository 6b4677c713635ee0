"""Outcome of an episode, as its agent told it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

MAX_REWARD = 1e35
"""Largest reward. Rewards are kept in float32, at most 3.4e38, and several are added up."""


class AgentFailure(Exception):
    """An agent that raised, died, or told something that is no outcome; the text says what and how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOutcome:
    """An agent's account of its episode."""

    rewards: Mapping[str, float] = field(default_factory=dict)
    """By name; the episode earns their sum."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    request_rewards: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By the id of a reply: what each of its answers earned."""
    agent_rewards: Mapping[str, float] = field(default_factory=dict)
    """By the name of an agent that asked, or by a role, what stands before the last ``/`` of names; it stands on
    the last answer to that agent, or to each agent of the role."""

    @property
    def has_reward(self) -> bool:
        """True when the agent told a reward of any kind."""
        return bool(self.rewards or self.request_rewards or self.agent_rewards)


_FIELDS = ("reward", "rewards", "metrics", "request_rewards", "agent_rewards")


def read_outcome(value: Any) -> AgentOutcome:
    """Return the outcome that an agent returned: a number, an object with some of ``reward``, ``rewards``, ``metrics``,
    ``request_rewards`` and ``agent_rewards``, or nothing.

    Raises:
        AgentFailure: it is none of these, or a number is not finite.
    """
    if value is None:
        return AgentOutcome()
    if not isinstance(value, Mapping):
        return AgentOutcome(rewards={"agent": _number("its reward", value)})
    unknown = [str(name) for name in value if name not in _FIELDS]
    if unknown:
        raise AgentFailure(
            f"returned {', '.join(map(repr, unknown))}; expected reward, rewards and metrics, or request_rewards and "
            "agent_rewards"
        )
    rewards = _numbers("rewards", value.get("rewards"))
    if value.get("reward") is not None:
        rewards["agent"] = _number("reward", value["reward"]) + rewards.get("agent", 0.0)
    return AgentOutcome(
        rewards=rewards,
        metrics=_numbers("metrics", value.get("metrics")),
        request_rewards=_of_requests(value.get("request_rewards")),
        agent_rewards=_numbers("agent_rewards", value.get("agent_rewards")),
    )


def _of_requests(value: object) -> dict[str, tuple[float, ...]]:
    """Return the rewards of each reply's answers: a number where it has one answer, else one for each."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise AgentFailure(
            f"returned request_rewards = {str(value)[:80]!r}; expected numbers by the ids of replies"
        )
    return {
        str(reply): tuple(
            _number(f"request_rewards.{reply}", number)
            for number in (numbers if isinstance(numbers, list | tuple) else [numbers])
        )
        for reply, numbers in value.items()
    }


def _numbers(name: str, value: object) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise AgentFailure(f"returned {name} = {str(value)[:80]!r}; expected numbers by name")
    return {str(key): _number(f"{name}.{key}", number) for key, number in value.items()}


def _number(name: str, value: Any) -> float:
    number = value.item() if getattr(value, "ndim", None) == 0 else value
    if not isinstance(number, Real) or not abs(plain := float(number)) <= MAX_REWARD:
        raise AgentFailure(f"returned {name} = {str(value)[:80]!r}; expected one finite number")
    return plain

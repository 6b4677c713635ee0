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


def read_outcome(value: Any) -> AgentOutcome:
    """Return the outcome that an agent returned: a number, an object with ``reward``, ``rewards`` and ``metrics``, or
    nothing.

    Raises:
        AgentFailure: it is none of these, or a number is not finite.
    """
    if value is None:
        return AgentOutcome()
    if not isinstance(value, Mapping):
        return AgentOutcome(rewards={"agent": _number("its reward", value)})
    unknown = [str(name) for name in value if name not in ("reward", "rewards", "metrics")]
    if unknown:
        raise AgentFailure(
            f"returned {', '.join(map(repr, unknown))}; expected reward, rewards and metrics"
        )
    rewards = _numbers("rewards", value.get("rewards"))
    if value.get("reward") is not None:
        rewards["agent"] = _number("reward", value["reward"]) + rewards.get("agent", 0.0)
    return AgentOutcome(rewards=rewards, metrics=_numbers("metrics", value.get("metrics")))


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

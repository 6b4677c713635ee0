"""The context that an agent gets for its episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_core.contracts import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """One episode, for the agent that plays it."""

    base_url: str
    """Address of the policy with ``/v1``, for clients of OpenAI."""
    root_url: str
    """The same without ``/v1``, for clients of Anthropic."""
    api_key: str = field(repr=False)
    """Key of this episode."""
    model: str
    """Name of the policy."""
    row: Mapping[str, Any]
    """The task's row of data, by its column names."""
    messages: tuple[Message, ...]
    """The task's prompt as chat messages, as a client of OpenAI sends them: an image is an ``image_url`` part with a
    data URL. Empty if it is no chat."""
    prompt: str
    """The task's prompt as text: the last message's text, or the whole prompt where it is no chat."""
    seed: int
    """Seed of the agent's own randomness; all episodes of a group have the same."""
    uid: str
    """Name of the episode."""

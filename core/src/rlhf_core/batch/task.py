"""What an executor starts from, and how its samples are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Message = Mapping[str, Any]
"""One chat message: ``{"role": ..., "content": ...}``."""


class Uid(NamedTuple):
    """Name of a training sequence; sorting by it gives the order of training."""

    epoch: int
    """Pass over the data; evaluation uses -1."""
    prompt: int
    """Position of the row in the data set."""
    sample: int = 0
    """Which of the group's episodes."""
    segment: int = 0
    """Which of the episode's training sequences (more than one after context compaction, or for sub-agents)."""

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Uid:
        """Invert ``str(uid)``."""
        return cls(*map(int, text.split(".")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One prompt with everything that rewards and environments may want to know of it."""

    uid: Uid
    """Of the group: sample and segment are 0."""
    prompt_ids: tuple[int, ...] = ()
    """The rendered and tokenised prompt. Empty if the environment writes the first observation."""
    messages: tuple[Message, ...] = ()
    """The prompt as chat messages, if it is a chat."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The whole data row, by its original column names."""
    dataset: str = "train"
    """Name of the data set, by which evaluation results are grouped."""
    media: Sequence[Any] = ()
    """References to images and the like."""

"""Tasks, from which executors start, and uids, the names of training sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..media.reference import MediaRef

Message = Mapping[str, Any]
"""One chat message: ``{"role": ..., "content": ...}``."""


def value_at(row: Mapping[str, Any], key: str) -> Any:
    """Return the value of a column, or of an entry of the objects in one (``reward_model.ground_truth``).

    A column with exactly this name wins.

    Raises:
        KeyError: there is none.
    """
    if key in row:
        return row[key]
    column, _, inside = key.partition(".")
    if inside and isinstance(row.get(column), Mapping):
        return value_at(row[column], inside)
    raise KeyError(key)


class Uid(NamedTuple):
    """Name of a training sequence; sorting by it gives the order of training."""

    epoch: int
    """Pass over the data, or with a prompt sampler the number of the prompt's draw; evaluation uses -1."""
    prompt: int
    """Position of the row in the data set."""
    sample: int = 0
    """Index of the episode in its group, from 0."""
    segment: int = 0
    """Index of the training sequence in its episode, from 0; over 0 after context compaction, or for sub-agents."""

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Uid:
        """Return the uid that ``str`` wrote as ``text``."""
        return cls(*map(int, text.split(".")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One prompt, and the data that rewards and environments may need."""

    uid: Uid
    """Name of the task's group: sample and segment are 0."""
    prompt_ids: tuple[int, ...] = ()
    """Tokens of the rendered prompt, with one marker for each image. Empty if the environment writes the first
    observation."""
    messages: tuple[Message, ...] = ()
    """The prompt as chat messages, if it is a chat."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The whole data row, by its original column names."""
    dataset: str = "train"
    """Name of the data set, by which evaluation results are grouped."""
    environment: str = ""
    """Name, in this run, of the environment that plays the task; empty: the run's only one."""
    media: tuple[MediaRef, ...] = ()
    """Images of the prompt, in the order of their markers."""

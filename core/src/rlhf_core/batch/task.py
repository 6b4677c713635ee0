"""Tasks, from which executors start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..media.reference import MediaRef
from .trajectory import Uid as Uid

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

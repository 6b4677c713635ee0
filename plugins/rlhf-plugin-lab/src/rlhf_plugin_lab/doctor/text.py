"""A recorded rollout as diagnoses look at it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """A recorded rollout."""

    step: int
    group: str
    answer: str
    """Text of the policy; its turns are lines, and turns in a row that are the same are one."""
    reward: float
    uid: str = ""
    prompt: str = ""
    """Its last characters; empty: not recorded."""
    images: tuple[str, ...] = ()
    """Files of the images that were seen."""
    truncated: bool = False
    """Whether the limit of tokens ended it."""
    turns: int = 1
    """Number of pieces that the policy wrote."""
    policy_ends: bool = True
    """Whether the last words are the policy's."""

    @property
    def question(self) -> str:
        """The prompt and its images, or the group's name where none is recorded: groups of one prompt were asked the
        same."""
        return "\n".join((self.prompt or self.group, *self.images))

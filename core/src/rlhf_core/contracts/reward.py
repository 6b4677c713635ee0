"""Rewards, and the shapers and filters that come after them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..batch.trajectory import Turn
from ..media.sample_image import SampleImage

if TYPE_CHECKING:
    from ..batch.metric import Metrics
    from ..batch.trajectory_columns import TrajectoryColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRequest:
    """One finished sample."""

    uid: str
    """``epoch.prompt.sample.segment``."""
    row: Mapping[str, Any]
    """The whole data row, a copy: changing it changes nothing."""
    prompt: str
    """Decoded prompt, special tokens kept."""
    response: str
    """Decoded actions and environment text after the prompt, without special tokens."""
    token_ids: tuple[int, ...]
    """The whole sequence."""
    action_mask: tuple[bool, ...]
    """(T,) True at the tokens that the policy wrote."""
    turns: tuple[Turn, ...]
    """The answers, in their order."""
    truncated: bool
    """True: the last answer hit a token limit."""
    media: tuple[SampleImage, ...] = ()
    """Images of prompt and observations, in the order of their tokens: files of the run, which the reward may open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardResult:
    """The reward of one sample."""

    reward: float
    """The sample's whole reward; finite."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further numbers of the sample, recorded as ``rollout/NAME``."""
    step_rewards: Sequence[tuple[int, float]] = ()
    """Where the reward stands: pairs of an action token and its part of the reward. Tokens are counted among the
    sample's actions, from 0; the parts of one token add up, and all parts together are ``reward``. Empty: the reward
    stands on the last action token. A reward that gives parts needs ``credits_tokens`` (``rlhf_core.capabilities``)."""

    @staticmethod
    def at_steps(
        step_rewards: Sequence[tuple[int, float]], metrics: Mapping[str, float] | None = None
    ) -> RewardResult:
        """Return the result whose reward is the sum of the parts, 0 if there are none."""
        return RewardResult(
            reward=math.fsum(part for _, part in step_rewards),
            metrics=metrics or {},
            step_rewards=tuple(step_rewards),
        )


class Reward(Protocol):
    """Scores finished samples. Runs in its own process unless the run sets ``isolate = false``."""

    async def score(self, requests: Sequence[RewardRequest]) -> Sequence[RewardResult | Exception]:
        """Return one result per request, in order; an exception in a sample's place says why it has no reward.

        The result for a sample must not depend on the others. An exception that is raised concerns the whole batch: its
        samples are then scored again one by one, so that only the faulty ones fail.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutInfo:
    """Step, version and limits of a rollout batch."""

    step: int
    """The training step that trains on the batch, from 1."""
    version: int
    """Version of the policy's weights at the start of that step."""
    max_new_tokens: int
    """Longest response of one turn."""
    max_length: int
    """Longest sequence: prompt, actions and environment text together."""


class RewardShaper(Protocol):
    """Changes the rewards of a whole rollout batch before filters and advantages see them.

    ``TrajectoryColumns.reward`` is the whole reward of an episode, its parts at single tokens (``step_rewards``)
    included: a shaper that changes ``reward`` alone changes the sum, and the change stands on the last action token. A
    shaper that scales or replaces rewards does the same to the parts, and to ``turn_rewards``.
    """

    def shape(
        self, batch: TrajectoryColumns, info: RolloutInfo
    ) -> tuple[TrajectoryColumns, Metrics]:
        """Return the batch with new rewards (the same rows in the same order) and what to log."""

    def state_dict(self) -> dict[str, Any]:
        """Return the shaper's state for a checkpoint, as JSON types."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state_dict`` of a checkpoint."""


class SampleFilter(Protocol):
    """Decides which groups are trained on; the loop draws replacements for what it drops."""

    def keep(self, group: TrajectoryColumns, info: RolloutInfo) -> str | None:
        """Return None to keep the group, or the reason for dropping it (a short word; it is counted)."""

"""Rewards that depend on length: against a prompt's other samples (Kimi k1.5), or by the token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Metrics, RolloutInfo, TrajectoryColumns
from rlhf_core.lazy import Bool, Float, Int, np

from .episodes import episode_lengths, episode_means, over_samples
from .stateless import Stateless


class LengthBonusConfig(Config):
    mode: Literal["group", "token"] = Field(
        "group",
        description="group: the bonus goes by length between the shortest and the longest sample of the prompt; "
        "token: it goes by number of action tokens",
    )
    weight: float = Field(
        1.0,
        ge=0.0,
        le=1e6,
        description="mode group: size of the bonus, of which the shortest sample gets half and the longest loses "
        "half",
    )
    per_token: float = Field(
        -1e-4,
        ge=-1.0,
        le=1.0,
        description="mode token: number that is added to the reward per action token; below 0 it is a penalty",
    )
    only_correct: bool = Field(
        False, description="change the rewards of correct samples only, in both modes"
    )
    correct_above: float = Field(
        0.0, ge=-1e6, le=1e6, description="reward above which a sample is correct"
    )

    def needed_by_options(self) -> frozenset[str]:
        """A comparison of lengths needs at least two samples."""
        return frozenset({"group>=2"}) if self.mode == "group" else frozenset()

    def without_effect(self) -> Mapping[str, str]:
        """The size of the other bonus, and the bound of a mode in which no sample is asked whether it is correct."""
        if self.mode == "group":
            return {"per_token": "mode is group. Set mode token."}
        idle = {"weight": "mode is token. Set mode group, or per_token."}
        if not self.only_correct:
            idle["correct_above"] = "mode is token. Set only_correct too."
        return idle


def group_length_bonus(
    lengths: Int[np.ndarray, " b"],
    correct: Bool[np.ndarray, " b"],
    group: Int[np.ndarray, " b"],
) -> Float[np.ndarray, " b"]:
    """Return ``1/2 - (length - shortest) / (longest - shortest)`` within each group; at most 0 where not correct.

    The shortest sample of the group gets 1/2 and the longest -1/2. A wrong answer gains nothing by being short. A group
    of equal lengths, and a group of one, gets 0.

    Args:
        lengths: number of action tokens of each sample.
        correct: True for samples that are correct.
        group: dense index 0..P-1.

    Source: Kimi Team 2025 (Kimi k1.5), arXiv:2501.12599, section 2.3.3.
    """
    shortest = np.full(len(lengths), np.iinfo(np.int64).max)  # by group, as many as there can be
    longest = np.zeros(len(lengths), dtype=np.int64)
    np.minimum.at(shortest, group, lengths)
    np.maximum.at(longest, group, lengths)
    spread = (longest - shortest)[group]  # (B,)
    place = (lengths - shortest[group]) / np.maximum(spread, 1)
    bonus = np.where(spread > 0, 0.5 - place, 0.0)
    return np.where(correct, bonus, np.minimum(bonus, 0.0))


class LengthBonus(Stateless):
    """Reward shaper that adds the bonus to the score of each episode; the tokens of all its turns count."""

    def __init__(self, config: LengthBonusConfig) -> None:
        self.config = config

    def shape(
        self, batch: TrajectoryColumns, info: RolloutInfo
    ) -> tuple[TrajectoryColumns, Metrics]:
        del info
        config, lengths = self.config, episode_lengths(batch)
        correct = episode_means(batch.total_reward, batch.episode) > config.correct_above
        if config.mode == "group":
            bonus = config.weight * group_length_bonus(lengths, correct, batch.group)
        else:
            bonus = config.per_token * lengths
        if config.only_correct:
            bonus = np.where(correct, bonus, 0.0)
        metrics = {"length_bonus/mean": over_samples(bonus, batch.episode)}
        return replace(batch, reward=(batch.reward + bonus).astype(np.float32)), metrics


COMPONENT = Component(
    name="length_bonus",
    factory=LengthBonus,
    config=LengthBonusConfig,
    summary="a bonus for being shorter than the prompt's other samples (Kimi k1.5), or by token",
)

"""Rewards that depend on length: against a prompt's other samples (Kimi k1.5), or by the token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float, Int

from rlhf_core.contracts import Metric, Metrics, RolloutInfo, TrajectoryColumns

from .config import LengthBonusConfig
from .episodes import episode_lengths, episode_means
from .stateless import Stateless


def group_length_bonus(
    lengths: Int[np.ndarray, " b"],
    correct: Bool[np.ndarray, " b"],
    group: Int[np.ndarray, " b"],
) -> Float[np.ndarray, " b"]:
    """Return ``1/2 - (length - shortest) / (longest - shortest)`` within each group; at most 0 where not correct.

    From 1/2 for the shortest sample of the group to -1/2 for its longest. A wrong answer gains nothing by being short.
    A group of equal lengths, and a group of one, gets 0.

    Args:
        lengths: action tokens.
        correct: of each sample.
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
    """Adds the bonus to the score of each episode; all its turns count."""

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
        metrics = {"length_bonus/mean": Metric(float(bonus.sum()), len(batch))}
        return replace(batch, reward=(batch.reward + bonus).astype(np.float32)), metrics

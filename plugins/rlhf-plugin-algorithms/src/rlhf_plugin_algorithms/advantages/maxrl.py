"""MaxRL: a group's advantages are divided by its mean reward, so rare successes weigh as in maximum likelihood.

The gradient of ``log p`` is that of ``p``, the chance of success, divided by p; the group's mean reward estimates p.
"""

from __future__ import annotations

from rlhf_core import Component, Config
from rlhf_core.contracts import Advantages, RewardBatch
from rlhf_core.lazy import Float, Int, torch
from rlhf_core.math import (
    advantages_at_tokens,
    group_mean,
    group_size,
    group_top_two,
    rewards_by_turn,
)


def mean_normalized_advantages(
    rewards: Float[torch.Tensor, "b k"],
    group: Int[torch.Tensor, " b"],
    episode: Int[torch.Tensor, " b"],
) -> Float[torch.Tensor, "b k"]:
    """Return, by turn, ``A_i = (r_i - mean(r)) / max(mean(r), max(r) / n)`` within each group; 0 where mean(r) <= 0.

    For rewards that are never negative the mean is at least max / n, so this is ``(r_i - mean) / mean``: with s
    successes among n samples ``n / s - 1`` for a success and -1 for a failure. The bound only acts where negative
    rewards bring the mean near 0, and keeps the quotient from exploding there.

    ``max(r)`` is the largest over the group's n episodes of q, the mean of ``max(r, 0)`` over the rows of an episode.
    With m rows in the episode of i, ``r_i <= m max(r)``, and since the mean is positive, the negative rewards of the
    episodes add up to at most ``n max(r)`` in size; so ``-m n^2 - 1 <= A_i <= m n``, whatever the rewards.

    Equal rewards in a group give exactly 0, and so does a group of one. Scaling the rewards of a group changes nothing;
    shifting them does.

    Args:
        rewards: reward that each row still earns from turn k on; meant to be 0 for failure and 1 for success.
        group: index of the prompt.
        episode: index of the episode; rows of one episode count once.

    Source: Tajwar et al. 2026 (MaxRL), arXiv:2602.02710.
    """
    mean = group_mean(rewards, group, episode)  # (B, K) mean(r)
    # max(r, 0) before the mean over an episode: rows of one episode that cancel would leave nothing to divide by.
    positive = group_mean(rewards.clamp(min=0.0), episode)  # (B, K)
    largest = group_top_two(positive, group, episode)[0]  # (B, K) max(r)
    divisor = torch.maximum(mean, largest / group_size(group, episode)[:, None])
    # Both branches of where() are computed: a divisor of 1 keeps the unused one finite.
    learns = mean > 0
    return torch.where(learns, (rewards - mean) / torch.where(learns, divisor, 1.0), 0.0)


class MaxRl:
    """Advantage estimator ``maxrl``."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        by_turn = mean_normalized_advantages(rewards_by_turn(batch), batch.group, batch.episode)
        return Advantages(advantages=advantages_at_tokens(by_turn, batch))


COMPONENT = Component(
    name="maxrl",
    factory=MaxRl,
    summary="reward minus its group's mean, divided by that mean (maximum likelihood RL)",
    needs=frozenset({"group>=2"}),
)

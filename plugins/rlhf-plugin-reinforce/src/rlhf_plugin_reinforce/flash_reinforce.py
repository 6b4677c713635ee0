"""FlashREINFORCE's advantage: the baseline is the mean reward of the whole rollout batch, and nothing is divided.

It needs no group, so one sample per prompt is enough.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rlhf_core.math import group_mean


def batch_baseline_advantages(
    rewards: Float[Tensor, "b k"], episode: Int[Tensor, " b"]
) -> Float[Tensor, "b k"]:
    """Return, by turn, the reward minus the mean reward of the batch: ``A_i = r_i - mean over all j of r_j``.

    The mean is over episodes, not tokens, and of their whole rewards: later turns, which have less left to earn, are
    held against the same number. Equal rewards in the batch give exactly 0.

    Args:
        rewards: what each row earns from turn k on; column 0 is the whole reward.
        episode: index of the episode; rows of one episode count once in the mean.

    Source: OpenRLHF 0.11.2, advantage estimator ``flash_reinforce``.
    """
    whole_batch = torch.zeros_like(episode)
    return rewards - group_mean(rewards[:, :1], whole_batch, episode)

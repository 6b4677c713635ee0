"""FlashREINFORCE's advantage: the baseline is the mean reward of the whole rollout batch, and nothing is divided.

It needs no group, so one sample per prompt is enough.
"""

from __future__ import annotations

from rlhf_core import Component, Config
from rlhf_core.contracts import Advantages, RewardBatch
from rlhf_core.lazy import Float, Int, torch
from rlhf_core.math import advantages_at_tokens, group_mean, rewards_by_turn


def batch_baseline_advantages(
    rewards: Float[torch.Tensor, "b k"], episode: Int[torch.Tensor, " b"]
) -> Float[torch.Tensor, "b k"]:
    """Return, by turn, the reward minus the mean reward of the batch: ``A_i = r_i - mean over all j of r_j``.

    The mean is over episodes, not tokens, and of whole rewards: later turns, which have less left to earn, are compared
    with the same number. Equal rewards in the batch give exactly 0.

    Args:
        rewards: reward that each row still earns from turn k on; column 0 is the whole reward.
        episode: index of the episode; rows of one episode count once in the mean.

    Source: OpenRLHF 0.11.2, advantage estimator ``flash_reinforce``.
    """
    whole_batch = torch.zeros_like(episode)
    return rewards - group_mean(rewards[:, :1], whole_batch, episode)


class FlashReinforce:
    """Advantage estimator ``flash_reinforce``; its other half is ``--algo.correction.kind flash_mask``."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        by_turn = batch_baseline_advantages(rewards_by_turn(batch), batch.episode)
        return Advantages(advantages=advantages_at_tokens(by_turn, batch))


COMPONENT = Component(
    name="flash_reinforce",
    factory=FlashReinforce,
    summary="reward minus the mean of the whole batch, no division (FlashREINFORCE)",
)

"""OPO: the baseline is the group's length-weighted mean reward, close to that of least gradient variance."""

from __future__ import annotations

from rlhf_core import Component, Config
from rlhf_core.contracts import Advantages, RewardBatch
from rlhf_core.lazy import Float, Int, torch
from rlhf_core.math import advantages_at_tokens, group_mean, group_weighted_mean, rewards_by_turn


def length_weighted_advantages(
    rewards: Float[torch.Tensor, "b k"],
    lengths: Int[torch.Tensor, " b"],
    group: Int[torch.Tensor, " b"],
    episode: Int[torch.Tensor, " b"],
) -> Float[torch.Tensor, "b k"]:
    """Return, by turn, ``A_i = r_i - sum_j(l_j r_j) / sum_j(l_j)`` within each group.

    The baseline that minimizes the variance of a policy gradient weights each reward by the squared norm of its
    sample's gradient; if that norm is proportional to the length l, it is this one. Over the tokens of a group the
    advantages have mean 0. Equal lengths give the plain mean. Equal rewards in a group give exactly 0, and so does a
    group of one.

    Args:
        rewards: reward that each row still earns from turn k on.
        lengths: l, the number of action tokens of the row.
        group: index of the prompt.
        episode: index of the episode; an episode of several rows counts with its mean reward and the tokens of all
            of its rows.

    Source: Hao et al. 2025 (OPO), arXiv:2505.23585.
    """
    of_episode = group_mean(rewards, episode)  # (B, K)
    weights = lengths[:, None].expand_as(rewards).to(rewards.dtype)  # (B, K)
    return rewards - group_weighted_mean(of_episode, weights, group)


class Opo:
    """Advantage estimator ``opo``."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        lengths = batch.action_mask.sum(dim=1)
        by_turn = length_weighted_advantages(
            rewards_by_turn(batch), lengths, batch.group, batch.episode
        )
        return Advantages(advantages=advantages_at_tokens(by_turn, batch))


COMPONENT = Component(
    name="opo",
    factory=Opo,
    summary="reward minus its group's mean, weighted by length (OPO)",
    needs=frozenset({"group>=2"}),
)

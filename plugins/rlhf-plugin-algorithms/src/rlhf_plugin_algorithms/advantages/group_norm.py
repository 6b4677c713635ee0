"""GRPO's advantage: each prompt's rewards, normalized by their own mean and standard deviation.

``A_i = (r_i - mean(r)) / (std(r) + eps)`` over the samples of a prompt, the same at every token of sample i. This
file is the advantage alone; the rest of GRPO is the loss ``ppo`` with ``--algo.loss.aggregation seq-mean-token-mean``
and the KL ``k3`` in the loss.

Source: Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300, section 4.1.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Advantages, RewardBatch
from rlhf_core.lazy import Float, Int, torch
from rlhf_core.math import advantages_at_tokens, group_mean, group_std, rewards_by_turn


class GroupNormConfig(Config):
    eps: float = Field(
        1e-4, ge=1e-6, le=1.0, description="added to the standard deviation, in units of the reward"
    )
    std: Literal["sample", "population"] = Field(
        "sample", description="divide the squared deviations of n samples by n - 1, or by n"
    )


def group_normalized_advantages(
    rewards: Float[torch.Tensor, "b k"],
    group: Int[torch.Tensor, " b"],
    episode: Int[torch.Tensor, " b"],
    *,
    eps: float,
    correction: int,
) -> Float[torch.Tensor, "b k"]:
    """Return, by turn, ``A_i = (r_i - mean(r)) / (std(r) + eps)`` within each group.

    Equal rewards in a group give exactly 0, and so does a group of one. With a small eps, scaling or shifting the
    rewards of a group changes nothing, so prompts whose samples differ little weigh as much as others.

    ``|A_i|`` is at most ``sqrt((n - correction) * (m - 1/n))`` for n episodes in the group and m rows in the episode of
    i, whatever the rewards: mean and deviation are over the same rows with the same weights.

    Args:
        rewards: reward that each row still earns from turn k on.
        group: index of the prompt.
        episode: index of the episode; each of m rows of an episode weighs 1/m, in the mean and in the deviation.
        eps: added to the standard deviation, in units of the reward.
        correction: 1 for the sample's standard deviation, 0 for the population's.

    Source: Shao et al. 2024 (GRPO), arXiv:2402.03300, section 4.1, which leaves eps and the correction open.
    """
    deviation = rewards - group_mean(rewards, group, episode)  # (B, K) r_i - mean(r)
    std = group_std(rewards, group, episode, correction=correction)  # (B, K) std(r)
    return deviation / (std + eps)


class GroupNorm:
    """Advantage estimator ``group_norm``. A KL penalty in the reward is added after the division, unscaled."""

    def __init__(self, config: GroupNormConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        by_turn = group_normalized_advantages(  # (B, K)
            rewards_by_turn(batch),
            batch.group,
            batch.episode,
            eps=self.config.eps,
            correction=1 if self.config.std == "sample" else 0,
        )
        return Advantages(advantages=advantages_at_tokens(by_turn, batch))


COMPONENT = Component(
    name="group_norm",
    aliases=("grpo",),
    factory=GroupNorm,
    config=GroupNormConfig,
    summary="reward minus its group's mean, divided by its group's standard deviation (GRPO)",
    needs=frozenset({"group>=2"}),
)

"""REINFORCE with a group baseline: a sample's advantage is its reward minus its group's mean.

Differs from GRPO in one way: the scale comes from the whole batch, not from each group, so an easy prompt's small
differences are not blown up to the size of a hard one's.

1. ``A_i = r_i - mean(r)`` within each prompt's group, at every action token of i;
2. plus the KL penalty still to come, where the KL is in the reward (the paper puts it into the loss, as ``k2``);
3. ``A <- (A - mean(A)) / std(A)`` over all action tokens of the batch, std the population's and at least 1e-4.

Source: Hu et al. 2025 (REINFORCE++ and REINFORCE++-baseline), arXiv:2501.03262.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Advantages, RewardBatch
from rlhf_core.lazy import Float, Int, torch
from rlhf_core.math import advantages_at_tokens, group_mean, rewards_by_turn, whiten


class ReinforceBaselineConfig(Config):
    whiten: Literal["full", "mean", "none"] = Field(
        "full",
        description="normalization over all action tokens of the batch. full: zero mean and unit variance; mean: "
        "zero mean only; none: no change",
    )


def group_baseline_advantages(
    rewards: Float[torch.Tensor, "b k"],
    group: Int[torch.Tensor, " b"],
    episode: Int[torch.Tensor, " b"],
) -> Float[torch.Tensor, "b k"]:
    """Return, by turn, the reward minus its group's mean: ``A_i = r_i - mean(r)``.

    Equal rewards in a group give exactly 0, and so does a group of one. Adding a constant to a group's rewards changes
    nothing.

    Args:
        rewards: reward that each row still earns from turn k on.
        group: index of the prompt.
        episode: index of the episode; rows of one episode count once in the mean.
    """
    return rewards - group_mean(rewards, group, episode)  # (B, K)


class ReinforceBaseline:
    """Advantage estimator ``reinforce_baseline``: steps 1 to 3 of the file's head."""

    def __init__(self, config: ReinforceBaselineConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        r = rewards_by_turn(batch)  # (B, K): column 0 is the whole reward of a sample
        by_turn = group_baseline_advantages(r, batch.group, batch.episode)  # (B, K) step 1
        advantages = advantages_at_tokens(by_turn, batch)  # (B, A) step 2: plus the KL to come
        if self.config.whiten != "none":
            full = self.config.whiten == "full"
            # (B, A) step 3
            advantages = whiten(advantages, batch.action_mask, divide_by_std=full)
        return Advantages(advantages=advantages)


COMPONENT = Component(
    name="reinforce_baseline",
    factory=ReinforceBaseline,
    config=ReinforceBaselineConfig,
    summary="reward minus its group's mean, whitened over the batch (REINFORCE++-baseline)",
    needs=frozenset({"group>=2"}),
)

"""Dr. GRPO's advantage: GRPO's without the division by the standard deviation.

That division favors prompts that are almost solved or almost hopeless. The other half of Dr. GRPO is the normalizer of
the loss, a constant in place of each response's length: the core's aggregation ``seq-mean-token-sum-norm``.
"""

from __future__ import annotations

from rlhf_core import Component, Config
from rlhf_core.contracts import Advantages, RewardBatch
from rlhf_core.lazy import Float, Int, torch
from rlhf_core.math import advantages_at_tokens, group_mean, rewards_by_turn


def group_centered_advantages(
    rewards: Float[torch.Tensor, "b k"],
    group: Int[torch.Tensor, " b"],
    episode: Int[torch.Tensor, " b"],
) -> Float[torch.Tensor, "b k"]:
    """Return, by turn, ``A_i = r_i - mean(r)`` within each group.

    Equal rewards in a group give exactly 0, and so does a group of one.

    Args:
        rewards: reward that each row still earns from turn k on.
        group: index of the prompt.
        episode: index of the episode; rows of one episode count once in the mean.

    Source: Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783.
    """
    return rewards - group_mean(rewards, group, episode)


class DrGrpo:
    """Advantage estimator ``dr_grpo``."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        by_turn = group_centered_advantages(rewards_by_turn(batch), batch.group, batch.episode)
        return Advantages(advantages=advantages_at_tokens(by_turn, batch))


COMPONENT = Component(
    name="dr_grpo",
    factory=DrGrpo,
    summary="reward minus its group's mean, over a constant length (Dr. GRPO)",
    needs=frozenset({"group>=2"}),
    provides=frozenset({"aggregation:seq-mean-token-sum-norm"}),
)

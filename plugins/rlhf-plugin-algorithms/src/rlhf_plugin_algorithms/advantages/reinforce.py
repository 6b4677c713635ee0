"""REINFORCE without a baseline of its own; with whitening the batch's mean return is the baseline."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Advantages, RewardBatch
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import reward_to_go, whiten

Whitening = Literal["full", "mean", "none"]


class ReinforceConfig(Config):
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount per action token")
    whiten: Whitening = Field(
        "full",
        description="normalization over all action tokens of the batch. full: zero mean and unit variance; mean: "
        "zero mean only; none: no change",
    )


def reinforce_advantages(
    token_rewards: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    *,
    gamma: float,
    whitening: Whitening,
) -> Float[torch.Tensor, "b a"]:
    """Return the discounted reward-to-go of each action token, whitened over the batch; 0 at padding.

    ``G_t = sum over s >= t of gamma^(s - t) * R_s``, then ``A = (G - mean(G)) / std(G)`` over all action tokens,
    std the population's and at least 1e-4. With whitening ``none`` it is plain REINFORCE.

    Args:
        token_rewards: R_s, the KL penalty included: each token pays for its own divergence and that of later ones.
        gamma: discount per action token, in [0, 1].
        whitening: ``mean`` removes the mean, ``full`` also divides by the standard deviation.

    Source: Hu et al. 2025 (REINFORCE++), arXiv:2501.03262.
    """
    returns = reward_to_go(token_rewards, action_mask, gamma)
    if whitening == "none":
        return returns
    return whiten(returns, action_mask, divide_by_std=whitening == "full")


class Reinforce:
    """Advantage estimator ``reinforce``."""

    def __init__(self, config: ReinforceConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        advantages = reinforce_advantages(
            batch.token_rewards,
            batch.action_mask,
            gamma=self.config.gamma,
            whitening=self.config.whiten,
        )
        return Advantages(advantages=advantages)


COMPONENT = Component(
    name="reinforce",
    factory=Reinforce,
    config=ReinforceConfig,
    summary="discounted return, whitened over the batch (REINFORCE++)",
    provides=frozenset({"credits_tokens"}),
)

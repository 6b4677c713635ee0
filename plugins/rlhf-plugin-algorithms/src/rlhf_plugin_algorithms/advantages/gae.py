"""Generalized advantage estimation over action tokens.

Environment text between turns has no columns here, so it takes no time: the value after a turn's last token is that
of the next turn's first, and rewards of several turns are simply rewards at several tokens.

1. ``delta_t = R_t + gamma * V_{t+1} - V_t``, with V = 0 after the last token (see ``bootstrap_truncated``);
2. ``A_t = delta_t + gamma * lambda * A_{t+1}``, with A = 0 after the last token;
3. the critic's targets are ``A_t + V_t``;
4. ``A <- (A - mean(A)) / std(A)`` over all action tokens of the batch, std the population's and at least 1e-4. The
   paper has no such step; it is common practice.

Source: Schulman et al. 2016, arXiv:1506.02438.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Advantages, RewardBatch
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import reward_to_go, whiten


class GaeConfig(Config):
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount per action token")
    lambda_: float = Field(
        0.95,
        ge=0.0,
        le=1.0,
        description="lambda of GAE, from 0 to 1. 1: observed returns minus value; 0: one-step TD error; long "
        "responses need a high one",
    )
    value_lambda_: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="lambda of the critic's targets, from 0 to 1; none: lambda_; 1: observed returns (VC-PPO, VAPO)",
    )
    bootstrap_truncated: bool = Field(
        False,
        description="add gamma times the critic's value of the state after a truncated response; false: nothing is "
        "added",
    )
    whiten: Literal["full", "mean", "none"] = Field(
        "full",
        description="normalization over all action tokens of the batch. full: zero mean and unit variance; mean: "
        "zero mean only; none: no change",
    )

    def needed_by_options(self) -> frozenset[str]:
        """Bootstrapping needs the value of the state after the last token."""
        return frozenset({"final_values"}) if self.bootstrap_truncated else frozenset()


def gae_advantages(
    token_rewards: Float[torch.Tensor, "b a"],
    values: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    *,
    gamma: float,
    lambda_: float,
    final_values: Float[torch.Tensor, " b"] | None = None,
) -> Float[torch.Tensor, "b a"]:
    """Return A_t, the sum of the TD errors from t on, discounted by ``gamma * lambda_``; 0 at padding.

    ``delta_t = R_t + gamma * V_{t+1} - V_t`` and ``A_t = delta_t + gamma * lambda_ * A_{t+1}``. After the last action
    token A is 0 and V is ``final_values``, 0 without them.

    ``lambda_=1`` gives the discounted return minus V, ``lambda_=0`` the TD error. ``A + V`` is the critic's target.
    Final values of 0 change nothing.

    Args:
        token_rewards: R_t, the KL penalty included where it is in the reward.
        values: V_t, the critic's value of the state before each action token.
        gamma: discount per action token, in [0, 1].
        lambda_: in [0, 1]; 0 has the bias of the critic, 1 the variance of the returns.
        final_values: the critic's value of the state after the last action token where the response was cut off, and 0
            where the episode ended there.

    Source: Schulman et al. 2016, arXiv:1506.02438, equation 16; on the value after a cut: Pardo et al. 2018,
    arXiv:1712.00378.
    """
    values = torch.where(action_mask, values, 0.0)  # (B, A)
    next_values = torch.nn.functional.pad(values[:, 1:], (0, 1))  # (B, A) V_{t+1}
    if final_values is not None:
        goes_on = torch.nn.functional.pad(action_mask[:, 1:], (0, 1))  # (B, A)
        next_values = torch.where(goes_on, next_values, final_values[:, None])
    td_errors = token_rewards + gamma * next_values - values  # (B, A) delta_t
    return reward_to_go(td_errors, action_mask, gamma * lambda_)  # (B, A) A_t


class GaeEstimator:
    """Advantage estimator ``gae``. The critic's targets are the advantages before whitening, plus the values."""

    def __init__(self, config: GaeConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        assert batch.values is not None, "gae is registered with needs={'values'}"
        mask, values, config = batch.action_mask, batch.values, self.config
        final = self._final_values(batch)

        def estimate(lambda_: float) -> torch.Tensor:
            return gae_advantages(
                batch.token_rewards,
                values,
                mask,
                gamma=config.gamma,
                lambda_=lambda_,
                final_values=final,
            )

        advantages = estimate(config.lambda_)
        critic_lambda = config.lambda_ if config.value_lambda_ is None else config.value_lambda_
        targets = advantages if critic_lambda == config.lambda_ else estimate(critic_lambda)
        returns = torch.where(mask, targets + values, 0.0)  # (B, A) A_t + V_t
        if config.whiten != "none":
            advantages = whiten(advantages, mask, divide_by_std=config.whiten == "full")
        return Advantages(advantages=advantages, returns=returns)

    def _final_values(self, batch: RewardBatch) -> torch.Tensor | None:
        if not self.config.bootstrap_truncated:
            return None
        assert batch.final_values is not None, "bootstrap_truncated brings a need for final_values"
        return torch.where(batch.truncated, batch.final_values, 0.0)


COMPONENT = Component(
    name="gae",
    factory=GaeEstimator,
    config=GaeConfig,
    summary="generalized advantage estimation with a critic (PPO)",
    needs=frozenset({"values"}),
    provides=frozenset({"credits_tokens"}),
)

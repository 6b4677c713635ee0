"""Decoupled PPO: updates stay close to another policy than the one that sampled the data.

With stale data, or a sampler with other kernels, PPO would hold the policy near the sampler's. Here it is held near the
policy at the start of the updates, and the data is weighted as if that policy had sampled it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from rlhf_core import Component, Config
from rlhf_core.contracts import LossInputs, Metric, TokenLoss
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import masked_sum, token_log_ratios


class DecoupledPpoConfig(Config):
    clip_low: float = Field(
        0.2,
        gt=0.0,
        le=1.0,
        description="the ratio to the old policy counts down to 1 - clip_low; 1: no lower bound",
    )
    clip_high: float = Field(
        0.2, gt=0.0, le=10.0, description="the ratio to the old policy counts up to 1 + clip_high"
    )
    max_weight: float | None = Field(
        5.0,
        ge=1.0,
        le=1e6,
        description="largest weight of a token, which is its ratio old / rollout; none: no bound",
    )
    beyond: Literal["drop", "truncate"] = Field(
        "drop",
        description="what happens to a token with a larger weight than max_weight: drop leaves it out, truncate "
        "gives it max_weight",
    )

    @model_validator(mode="after")
    def _refuse_to_truncate_without_a_bound(self) -> DecoupledPpoConfig:
        if self.max_weight is None and self.beyond == "truncate":
            raise ValueError(
                "beyond truncate sets weights to max_weight, which is none: nothing would be truncated. "
                "Set max_weight, or leave beyond out."
            )
        return self


class DecoupledResult(NamedTuple):
    """Per token; all zero or False at padding. Only ``loss`` has a gradient."""

    loss: Float[torch.Tensor, "b a"]
    ratio: Float[torch.Tensor, "b a"]
    """Ratio of the policy to the old policy."""
    weights: Float[torch.Tensor, "b a"]
    """Ratio of the old policy to the sampler, bounded; 0 where dropped."""
    clipped_low: Bool[torch.Tensor, "b a"]
    """The lower bound stopped the gradient: A < 0 and a ratio below 1 - clip_low."""
    clipped_high: Bool[torch.Tensor, "b a"]
    """The upper bound stopped the gradient: A > 0 and a ratio above 1 + clip_high."""
    beyond: Bool[torch.Tensor, "b a"]
    """True where the weight was above ``max_weight``."""


def decoupled_ppo_loss(
    policy_logprobs: Float[torch.Tensor, "b a"],
    old_logprobs: Float[torch.Tensor, "b a"],
    rollout_logprobs: Float[torch.Tensor, "b a"],
    advantages: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    *,
    clip_low: float,
    clip_high: float,
    max_weight: float | None,
    drop_beyond: bool,
) -> DecoupledResult:
    """Return ``-w * min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)``.

    ``ratio = exp(policy - old)`` has the gradient; ``w = exp(old - rollout)`` has none. A weight above ``max_weight``
    drops its token, or is set to the bound.

    An exact sampler without staleness (rollout = old) gives PPO. With policy = old the gradient is ``-w * A``, and
    REINFORCE's if all three are equal.

    Log-ratios are clamped to [-20, 20]. What stands at padding, nan included, has no effect.

    Args:
        old_logprobs: those of the proximal policy, the trainer's at the start of the updates; nats.
        rollout_logprobs: those of the behavior policy, the sampler's; nats.
        max_weight: at least 1; None: no bound.
        drop_beyond: drop tokens with a larger weight instead of truncating their weight.

    Source: Fu et al. 2025 (AReaL), arXiv:2505.24298, after Hilton et al. 2022, arXiv:2110.00641; the
    bound of the weight: AReaL's code.
    """
    advantages = torch.where(action_mask, advantages, 0.0)
    ratio = token_log_ratios(policy_logprobs, old_logprobs, action_mask).exp()  # (B, A)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    raw = token_log_ratios(old_logprobs, rollout_logprobs, action_mask).exp().detach()  # (B, A)
    bound = float("inf") if max_weight is None else max_weight
    beyond = raw > bound
    bounded = torch.where(beyond, 0.0, raw) if drop_beyond else raw.clamp(max=bound)
    weights = torch.where(action_mask, bounded, 0.0)
    loss = -weights * torch.minimum(ratio * advantages, clipped * advantages)
    ratio = ratio.detach()
    return DecoupledResult(
        loss=torch.where(action_mask, loss, 0.0),
        ratio=torch.where(action_mask, ratio, 0.0),
        weights=weights,
        clipped_low=(advantages < 0) & (ratio < 1.0 - clip_low),
        clipped_high=(advantages > 0) & (ratio > 1.0 + clip_high),
        beyond=beyond,
    )


class DecoupledPpoLoss:
    """Policy loss ``decoupled_ppo``."""

    def __init__(self, config: DecoupledPpoConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        assert inputs.rollout_logprobs is not None, "registered with needs={'rollout_logprobs'}"
        mask, config = inputs.action_mask, self.config
        result = decoupled_ppo_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.rollout_logprobs,
            inputs.advantages,
            mask,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            max_weight=config.max_weight,
            drop_beyond=config.beyond == "drop",
        )
        count = mask.sum()
        metrics = {
            "policy/ratio": Metric(masked_sum(result.ratio, mask), count),
            "decoupled/weight": Metric(masked_sum(result.weights, mask), count),
            "decoupled/fraction_beyond": Metric(result.beyond.sum(), count),
            "clip/fraction_low": Metric(result.clipped_low.sum(), count),
            "clip/fraction_high": Metric(result.clipped_high.sum(), count),
        }
        return TokenLoss(loss=result.loss, metrics=metrics)


COMPONENT = Component(
    name="decoupled_ppo",
    factory=DecoupledPpoLoss,
    config=DecoupledPpoConfig,
    summary="PPO around the old policy, weighted by old / rollout (AReaL's decoupled loss)",
    needs=frozenset({"rollout_logprobs", "old_logprobs"}),
    # Its weight is a correction. With the sampler's log-probs as the old ones there would be none.
    conflicts=frozenset({"is_correction", "renormalized_sampling", "rollout_as_old"}),
    provides=frozenset({"off_policy"}),
)

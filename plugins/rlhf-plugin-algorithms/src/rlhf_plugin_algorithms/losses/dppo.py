"""DPPO: a trust region on the divergence of the distribution, instead of the sampled token's ratio.

A ratio of 2 at a probability of 0.001 moves next to nothing, and PPO stops it; a ratio of 1.15 at 0.8 moves an eighth
of the distribution, and PPO lets it pass. Here the distribution is reduced to two outcomes, this token or another, so
that log-probs of sampled tokens suffice.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import LossInputs, Metric, TokenLoss
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import masked_sum, token_log_ratios, weighted_reinforce

MIN_PROB = 1e-8
"""The probability of any other token is at least this, so that its logarithm is finite."""


DPPO_THRESHOLDS = {"tv": 0.15, "kl": 0.05}
"""Threshold of each divergence where the option is unset."""


class DppoConfig(Config):
    divergence: Literal["tv", "kl"] = Field(
        "tv",
        description="what the trust region bounds, of 'this token or another': tv: the change of its probability; "
        "kl: the KL divergence from the old policy",
    )
    threshold: float | None = Field(
        None,
        gt=0.0,
        le=100.0,
        description="largest divergence; a token that is farther away and would move on is dropped; none: 0.15 for "
        "tv, 0.05 for kl",
    )
    max_ratio: float | None = Field(
        20.0, ge=1.0, le=1e6, description="largest weight of a token; none: no bound"
    )


class DppoResult(NamedTuple):
    """Per token; all zero or False at padding. Only ``loss`` has a gradient."""

    loss: Float[torch.Tensor, "b a"]
    ratio: Float[torch.Tensor, "b a"]
    divergence: Float[torch.Tensor, "b a"]
    """A probability for ``tv``, nats for ``kl``."""
    dropped_low: Bool[torch.Tensor, "b a"]
    """True where A < 0, the token became less likely, and the divergence is above the threshold."""
    dropped_high: Bool[torch.Tensor, "b a"]
    """True where A > 0, the token became likelier, and the divergence is above the threshold."""


def binary_tv(
    policy_logprobs: Float[torch.Tensor, "*n"], old_logprobs: Float[torch.Tensor, "*n"]
) -> Float[torch.Tensor, "*n"]:
    """Return ``abs(p - q)``: the total variation between "this token or another" under both policies; in [0, 1]."""
    return (policy_logprobs.clamp(max=0.0).exp() - old_logprobs.clamp(max=0.0).exp()).abs()


def binary_kl(
    policy_logprobs: Float[torch.Tensor, "*n"], old_logprobs: Float[torch.Tensor, "*n"]
) -> Float[torch.Tensor, "*n"]:
    """Return ``q log(q / p) + (1 - q) log((1 - q) / (1 - p))`` in nats, q old and p policy; 0 where they are equal.

    It is a lower bound of KL(old || policy) over the whole vocabulary. Both 1 - q and 1 - p are at least 1e-8.
    """
    policy, old = policy_logprobs.clamp(max=0.0), old_logprobs.clamp(max=0.0)
    # expm1 keeps digits of 1 - p for tokens that are nearly certain.
    policy_rest = (-torch.expm1(policy)).clamp(min=MIN_PROB)
    old_rest = (-torch.expm1(old)).clamp(min=MIN_PROB)
    return old.exp() * (old - policy) + old_rest * (old_rest.log() - policy_rest.log())


def dppo_loss(
    policy_logprobs: Float[torch.Tensor, "b a"],
    old_logprobs: Float[torch.Tensor, "b a"],
    advantages: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    *,
    divergence: str,
    threshold: float,
    max_ratio: float | None,
) -> DppoResult:
    """Return ``-stop(min(ratio, max_ratio)) * A * log policy``, and 0 for tokens that would leave the trust region.

    A token would leave it if its divergence is above the threshold and its advantage moves it farther away: A > 0 with
    a ratio above 1, or A < 0 with a ratio below 1. A token that is outside may always come back.

    The gradient at a kept token is ``-ratio * A``; at ratio 1 nothing is dropped and it is REINFORCE's. A threshold of
    1 with ``tv`` drops nothing.

    The log-ratio is clamped to [-20, 20]. What stands at padding, nan included, has no effect.

    Args:
        old_logprobs: those of the policy that the trust region is around, nats.
        divergence: ``tv`` or ``kl``.
        threshold: a probability in (0, 1] for ``tv``, nats for ``kl``.
        max_ratio: at least 1; None: no bound.

    Raises:
        ValueError: the divergence is unknown.

    Source: Qi et al. 2026, arXiv:2602.04879; max_ratio: the authors' code in verl.
    """
    policy = torch.where(action_mask, policy_logprobs.detach(), 0.0)
    old = torch.where(action_mask, old_logprobs, 0.0)
    advantages = torch.where(action_mask, advantages, 0.0)
    match divergence:
        case "tv":
            distance = binary_tv(policy, old)
        case "kl":
            distance = binary_kl(policy, old)
        case _:
            raise ValueError(f"divergence {divergence!r}: expected 'tv' or 'kl'")
    outside = distance > threshold
    dropped_low = outside & (advantages < 0) & (policy < old)
    dropped_high = outside & (advantages > 0) & (policy > old)
    ratio = token_log_ratios(policy, old, action_mask).exp()  # (B, A)
    bounded = ratio if max_ratio is None else ratio.clamp(max=max_ratio)
    weights = torch.where(dropped_low | dropped_high, 0.0, bounded)
    return DppoResult(
        loss=weighted_reinforce(policy_logprobs, advantages, action_mask, weights),
        ratio=torch.where(action_mask, ratio, 0.0),
        divergence=torch.where(action_mask, distance, 0.0),
        dropped_low=dropped_low,
        dropped_high=dropped_high,
    )


class DppoLoss:
    """Policy loss ``dppo``."""

    def __init__(self, config: DppoConfig) -> None:
        self.config = config
        given = config.threshold
        self.threshold = DPPO_THRESHOLDS[config.divergence] if given is None else given

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        mask = inputs.action_mask
        result = dppo_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            mask,
            divergence=self.config.divergence,
            threshold=self.threshold,
            max_ratio=self.config.max_ratio,
        )
        count = mask.sum()
        metrics = {
            "policy/ratio": Metric(masked_sum(result.ratio, mask), count),
            "dppo/divergence": Metric(masked_sum(result.divergence, mask), count),
            "clip/fraction_low": Metric(result.dropped_low.sum(), count),
            "clip/fraction_high": Metric(result.dropped_high.sum(), count),
        }
        return TokenLoss(loss=result.loss, metrics=metrics)


COMPONENT = Component(
    name="dppo",
    factory=DppoLoss,
    config=DppoConfig,
    summary="trust region on the divergence of the distribution, not on the ratio (DPPO)",
    provides=frozenset({"off_policy"}),
)

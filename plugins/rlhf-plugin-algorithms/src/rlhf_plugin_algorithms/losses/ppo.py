"""PPO's clipped policy loss, per token, with separate bounds and an optional second clip.

``L_t = -min(r_t * A_t, clip(r_t, 1 - clip_low, 1 + clip_high) * A_t)`` with ``r_t = pi(a_t) / pi_old(a_t)``. The
core's aggregation makes one number of the tokens; advantages, a critic and the KL are other components' matter.

Source: Schulman et al. 2017, arXiv:1707.06347, equation 7.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import LossInputs, Metric, TokenLoss
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import masked_sum, token_log_ratios


class PpoLossConfig(Config):
    clip_low: float = Field(
        0.2, gt=0.0, le=1.0, description="the ratio counts down to 1 - clip_low; 1: no lower bound"
    )
    clip_high: float = Field(
        0.2,
        gt=0.0,
        le=10.0,
        description="the ratio counts up to 1 + clip_high; above clip_low it is clip-higher (DAPO: 0.28)",
    )
    dual_clip: float | None = Field(
        None,
        gt=1.0,
        le=100.0,
        description="largest loss of a token with a negative advantage, as a multiple of that advantage (dual clip); "
        "none: no bound",
    )


class ClippedLoss(NamedTuple):
    """Per token; all zero or False at padding. Only ``loss`` has a gradient."""

    loss: Float[torch.Tensor, "b a"]
    ratio: Float[torch.Tensor, "b a"]
    clipped_low: Bool[torch.Tensor, "b a"]
    """The lower bound stopped the gradient: A < 0 and a ratio below 1 - clip_low."""
    clipped_high: Bool[torch.Tensor, "b a"]
    """The upper bound stopped the gradient: A > 0 and a ratio above 1 + clip_high."""
    clipped_dual: Bool[torch.Tensor, "b a"]
    """The dual clip stopped the gradient: A < 0 and a ratio above ``dual_clip``."""


def clipped_policy_loss(
    policy_logprobs: Float[torch.Tensor, "b a"],
    old_logprobs: Float[torch.Tensor, "b a"],
    advantages: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> ClippedLoss:
    """Return the clipped loss of each action token; 0 at padding.

    ``loss = -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)`` with ``ratio = exp(policy - old)``, and for
    A < 0 with a dual clip c ``loss = -max(min(...), c * A)``.

    Equal bounds give PPO; a larger ``clip_high`` is DAPO's clip-higher; bounds that are never reached leave
    ``-ratio * A``, whose gradient at ratio 1 is REINFORCE's. What stands at padding, nan included, has no effect.

    The log-ratio is clamped to [-20, 20] before the exponential, with no gradient beyond; the paper has no such clamp.

    Args:
        clip_low: in (0, 1]; 1 means no lower bound.
        clip_high: positive.
        dual_clip: c, above 1; None: no dual clip.

    Source: Schulman et al. 2017, arXiv:1707.06347, equation 7; separate bounds: Yu et al. 2025 (DAPO),
    arXiv:2503.14476; dual clip: Ye et al. 2020, arXiv:1912.09729.
    """
    # Padding is replaced before the arithmetic: a nan there would come back in the backward pass as 0 * nan.
    advantages = torch.where(action_mask, advantages, 0.0)
    ratio = token_log_ratios(policy_logprobs, old_logprobs, action_mask).exp()  # (B, A) r_t
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)  # (B, A)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)  # (B, A)
    # The loss of a bad token grows with its ratio without an end, which the dual clip gives it.
    bad, good = advantages < 0, advantages > 0
    clipped_dual = torch.zeros_like(action_mask)
    if dual_clip is not None:
        bound = -dual_clip * advantages  # (B, A) -c A, the largest loss of a bad token
        clipped_dual = bad & (loss > bound).detach()
        loss = torch.where(bad, torch.minimum(loss, bound), loss)
    # Where a bound is active the gradient is 0; these say for how many tokens.
    ratio = ratio.detach()
    return ClippedLoss(
        loss=torch.where(action_mask, loss, 0.0),
        ratio=torch.where(action_mask, ratio, 0.0),
        clipped_low=bad & (ratio < 1.0 - clip_low),
        clipped_high=good & (ratio > 1.0 + clip_high),
        clipped_dual=clipped_dual,
    )


class PpoLoss:
    """Policy loss ``ppo``."""

    def __init__(self, config: PpoLossConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        mask, config = inputs.action_mask, self.config
        result = clipped_policy_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            mask,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            dual_clip=config.dual_clip,
        )
        count = mask.sum()
        metrics = {
            "policy/ratio": Metric(masked_sum(result.ratio, mask), count),
            "clip/fraction_low": Metric(result.clipped_low.sum(), count),
            "clip/fraction_high": Metric(result.clipped_high.sum(), count),
        }
        if config.dual_clip is not None:
            metrics["clip/fraction_dual"] = Metric(result.clipped_dual.sum(), count)
        return TokenLoss(loss=result.loss, metrics=metrics)


COMPONENT = Component(
    name="ppo",
    factory=PpoLoss,
    config=PpoLossConfig,
    summary="clipped policy ratio, with separate bounds (clip-higher) and dual clip",
    provides=frozenset({"off_policy"}),
)

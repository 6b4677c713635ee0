"""SAPO: a smooth gate on the ratio in place of PPO's clipping."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import LossInputs, Metric, TokenLoss
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import masked_sum, token_log_ratios


class SapoConfig(Config):
    tau_pos: float = Field(
        1.0,
        gt=0.0,
        le=100.0,
        description="steepness of the gate where A > 0; larger lets the gradient fade closer to ratio 1",
    )
    tau_neg: float = Field(
        1.05,
        gt=0.0,
        le=100.0,
        description="steepness of the gate where A <= 0; above tau_pos, since these updates are less stable",
    )


class SapoResult(NamedTuple):
    """Per token; all zero at padding. Only ``loss`` has a gradient."""

    loss: Float[torch.Tensor, "b a"]
    ratio: Float[torch.Tensor, "b a"]
    gate: Float[torch.Tensor, "b a"]
    """Slope of the gate, in (0, 1]: what is left of the gradient ``-ratio * A``."""


def sapo_loss(
    policy_logprobs: Float[torch.Tensor, "b a"],
    old_logprobs: Float[torch.Tensor, "b a"],
    advantages: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    *,
    tau_pos: float,
    tau_neg: float,
) -> SapoResult:
    """Return ``-f(ratio) * A`` with ``f(r) = 4 / tau * sigmoid(tau * (r - 1))``, tau by the sign of A.

    The slope of f is ``4 * sigmoid * (1 - sigmoid)``: 1 at ratio 1, where the gradient is REINFORCE's, and fading on
    both sides. As tau goes to 0 the slope is 1 everywhere and the gradient that of ``-ratio * A``. The value at ratio 1
    is ``-2 / tau * A``, so losses of runs with different tau cannot be compared.

    The log-ratio is clamped to [-20, 20] before the exponential, with no gradient beyond. What stands at padding, nan
    included, has no effect.

    Args:
        tau_pos: steepness where A > 0.
        tau_neg: steepness where A <= 0.

    Source: Gao et al. 2025, arXiv:2511.20347.
    """
    # Padding is replaced before the arithmetic: a nan there would come back in the backward pass as 0 * nan.
    advantages = torch.where(action_mask, advantages, 0.0)
    ratio = token_log_ratios(policy_logprobs, old_logprobs, action_mask).exp()
    # One side is a tensor: where() of two numbers is float32, whatever the log-probs are.
    tau = torch.where(advantages > 0, torch.full_like(ratio, tau_pos), tau_neg)
    sigmoid = torch.sigmoid(tau * (ratio - 1.0))
    loss = -(4.0 / tau) * sigmoid * advantages
    sigmoid = sigmoid.detach()
    return SapoResult(
        loss=torch.where(action_mask, loss, 0.0),
        ratio=torch.where(action_mask, ratio.detach(), 0.0),
        gate=torch.where(action_mask, 4.0 * sigmoid * (1.0 - sigmoid), 0.0),
    )


class SapoLoss:
    """Policy loss ``sapo``."""

    def __init__(self, config: SapoConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        mask = inputs.action_mask
        result = sapo_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            mask,
            tau_pos=self.config.tau_pos,
            tau_neg=self.config.tau_neg,
        )
        count = mask.sum()
        metrics = {
            "policy/ratio": Metric(masked_sum(result.ratio, mask), count),
            "sapo/gate": Metric(masked_sum(result.gate, mask), count),
        }
        return TokenLoss(loss=result.loss, metrics=metrics)


COMPONENT = Component(
    name="sapo",
    factory=SapoLoss,
    config=SapoConfig,
    summary="the ratio through a sigmoid, steeper for bad tokens, in place of clipping (SAPO)",
    provides=frozenset({"aggregation:seq-mean-token-mean", "off_policy"}),
)

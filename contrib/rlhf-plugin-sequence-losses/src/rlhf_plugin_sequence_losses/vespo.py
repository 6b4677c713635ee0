"""VESPO: the log-prob of each token, weighted with a smooth kernel of the whole sequence's importance weight.

The importance weight is the plain product over tokens, without length normalization; the kernel keeps it bounded.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import LossInputs, Metric, TokenLoss
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import MAX_LOG_RATIO, masked_sum, token_log_ratios

MIN_LOG_WEIGHT = math.log(1e-8)
"""Smaller importance weights count as 1e-8, as in the authors' code. The kernel is below 1e-14 there for k >= 2."""


class VespoConfig(Config):
    k_pos: float = Field(
        2.0, ge=0.0, le=100.0, description="A >= 0: power of the importance weight, rising part"
    )
    lambda_pos: float = Field(
        3.0, gt=0.0, le=100.0, description="A >= 0: exponential decay in the importance weight"
    )
    k_neg: float = Field(
        3.0, ge=0.0, le=100.0, description="A < 0: power of the importance weight, rising part"
    )
    lambda_neg: float = Field(
        2.0, gt=0.0, le=100.0, description="A < 0: exponential decay in the importance weight"
    )
    behavior: Literal["old", "rollout"] = Field(
        "old",
        description="the importance weight divides by old: the policy before the batch's updates; rollout: the "
        "sampler's log-probs, which covers its mismatch and staleness too",
    )

    def needed_by_options(self) -> frozenset[str]:
        return frozenset({"rollout_logprobs"} if self.behavior == "rollout" else ())

    def excluded_by_options(self) -> frozenset[str]:
        # The ratio to the sampler is in the weight already; a correction would apply it a second time.
        return frozenset(
            {"is_correction", "renormalized_sampling"} if self.behavior == "rollout" else ()
        )


class VespoResult(NamedTuple):
    """Loss and kernel are 0 at padding. Only ``loss`` has a gradient."""

    loss: Float[torch.Tensor, "b a"]
    kernel: Float[torch.Tensor, "b a"]
    log_weight: Float[torch.Tensor, "b 1"]
    """Log importance weight of the sequence, nats; clamped to [log 1e-8, 20]."""


def gamma_kernel(
    log_weight: Float[torch.Tensor, "*n"],
    k: Float[torch.Tensor, "*n"],
    lambda_: Float[torch.Tensor, "*n"],
) -> Float[torch.Tensor, "*n"]:
    """Return ``w^k * exp(lambda * (1 - w))``: 1 at w = 1, and largest at ``w = k / lambda``.

    It rises as a power of w and falls exponentially, so neither a tiny nor a huge importance weight moves the policy.
    ``lambda_ = 0`` would give the power alone, and with ``k = 1`` the plain importance weight.

    Args:
        log_weight: log w, nats.
        k: not negative.
        lambda_: not negative.

    Source: Shen et al. 2026, arXiv:2602.10693.
    """
    return (k * log_weight - lambda_ * torch.expm1(log_weight)).exp()


def vespo_loss(
    policy_logprobs: Float[torch.Tensor, "b a"],
    behavior_logprobs: Float[torch.Tensor, "b a"],
    advantages: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    *,
    k_pos: float,
    lambda_pos: float,
    k_neg: float,
    lambda_neg: float,
) -> VespoResult:
    """Return ``-stop(phi(w)) * A_t * log policy_t``, with ``log w = sum over the row of policy - behavior``.

    ``phi`` is ``gamma_kernel`` with ``k_pos, lambda_pos`` where A >= 0 and ``k_neg, lambda_neg`` elsewhere, and has no
    gradient. Equal policies have w = 1, phi = 1 and the gradient of REINFORCE.

    The log-ratio of a token is clamped to [-20, 20] and log w to [log 1e-8, 20]. What stands at padding, nan included,
    has no effect.

    Args:
        behavior_logprobs: those of the policy that the data counts as sampled from, nats.

    Source: Shen et al. 2026, arXiv:2602.10693, and the authors' code, which takes the sign of A from the first token
    of a sequence; here each token has its own.
    """
    advantages = torch.where(action_mask, advantages, 0.0)
    log_ratio = token_log_ratios(policy_logprobs.detach(), behavior_logprobs, action_mask)
    log_weight = log_ratio.sum(dim=1, keepdim=True).clamp(MIN_LOG_WEIGHT, MAX_LOG_RATIO)  # (B, 1)
    good = advantages >= 0
    # One side is a tensor: where() of two numbers is float32, whatever the log-probs are.
    k = torch.where(good, torch.full_like(log_ratio, k_pos), k_neg)
    lambda_ = torch.where(good, torch.full_like(log_ratio, lambda_pos), lambda_neg)
    kernel = gamma_kernel(log_weight.expand_as(k), k, lambda_)  # (B, A)
    logprobs = torch.where(action_mask, policy_logprobs, 0.0)
    return VespoResult(
        loss=-kernel * advantages * logprobs,
        kernel=torch.where(action_mask, kernel, 0.0),
        log_weight=log_weight,
    )


class VespoLoss:
    """Policy loss ``vespo``."""

    def __init__(self, config: VespoConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        mask, config = inputs.action_mask, self.config
        result = vespo_loss(
            inputs.policy_logprobs,
            self._behavior(inputs),
            inputs.advantages,
            mask,
            k_pos=config.k_pos,
            lambda_pos=config.lambda_pos,
            k_neg=config.k_neg,
            lambda_neg=config.lambda_neg,
        )
        rows = mask.any(dim=1)
        log_weight = torch.where(rows, result.log_weight.squeeze(1), 0.0)
        metrics = {
            "vespo/kernel": Metric(masked_sum(result.kernel, mask), mask.sum()),
            "vespo/log_weight": Metric(log_weight.sum(), rows.sum()),
            "vespo/abs_log_weight": Metric(log_weight.abs().sum(), rows.sum()),
        }
        return TokenLoss(loss=result.loss, metrics=metrics)

    def _behavior(self, inputs: LossInputs) -> torch.Tensor:
        if self.config.behavior == "old":
            return inputs.old_logprobs
        assert inputs.rollout_logprobs is not None, "behavior=rollout needs 'rollout_logprobs'"
        return inputs.rollout_logprobs


COMPONENT = Component(
    name="vespo",
    factory=VespoLoss,
    config=VespoConfig,
    summary="soft kernel on the whole sequence's importance weight, for stale data (VESPO)",
    provides=frozenset({"aggregation:token-mean", "off_policy"}),
)

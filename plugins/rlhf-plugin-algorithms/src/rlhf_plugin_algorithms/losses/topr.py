"""TOPR: REINFORCE for good sequences, importance weights of at most 1 for bad ones.

Off-policy, plain REINFORCE pushes a bad sequence down without end: the sequence stays in the data however unlikely it
has become. Good sequences need no weight for stability, and are learned faster without one.
"""

from __future__ import annotations

from typing import NamedTuple

from rlhf_core import Component, Config
from rlhf_core.contracts import LossInputs, Metric, TokenLoss
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import MAX_LOG_RATIO, masked_sum, token_log_ratios, weighted_reinforce


class ToprResult(NamedTuple):
    """Loss and weights are 0 at padding. Only ``loss`` has a gradient."""

    loss: Float[torch.Tensor, "b a"]
    weights: Float[torch.Tensor, "b a"]
    log_ratio: Float[torch.Tensor, "b 1"]
    """Log-ratio of the whole sequence, policy to sampler, in nats; clamped to [-20, 20]."""


def topr_loss(
    policy_logprobs: Float[torch.Tensor, "b a"],
    rollout_logprobs: Float[torch.Tensor, "b a"],
    advantages: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
) -> ToprResult:
    """Return ``-stop(w) * A_t * log policy_t``: w = 1 where A >= 0, and ``w = min(policy / rollout, 1)`` where A < 0.

    The ratio is that of the whole sequence, the product over its tokens. Equal policies give w = 1 and the gradient of
    REINFORCE; so do sequences that became likelier. Bad sequences lose their gradient as they become unlikely.

    The log-ratios of tokens, and then their sum, are clamped to [-20, 20]. What stands at padding, nan included, has no
    effect.

    Args:
        rollout_logprobs: those of the policy that sampled the tokens, whatever its age; nats.

    Source: Le Roux et al. 2025, arXiv:2503.14286. The paper has one return per sequence; where tokens
    differ in the sign of their advantage, each is weighted by its own.
    """
    advantages = torch.where(action_mask, advantages, 0.0)
    tokens = token_log_ratios(policy_logprobs.detach(), rollout_logprobs, action_mask)
    log_ratio = tokens.sum(dim=1, keepdim=True).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)  # (B, 1)
    weights = torch.where(advantages < 0, log_ratio.clamp(max=0.0).exp(), 1.0)  # (B, A)
    weights = torch.where(action_mask, weights, 0.0)
    return ToprResult(
        loss=weighted_reinforce(policy_logprobs, advantages, action_mask, weights),
        weights=weights,
        log_ratio=log_ratio,
    )


class ToprLoss:
    """Policy loss ``topr``."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        assert inputs.rollout_logprobs is not None, "registered with needs={'rollout_logprobs'}"
        mask = inputs.action_mask
        result = topr_loss(inputs.policy_logprobs, inputs.rollout_logprobs, inputs.advantages, mask)
        bad, rows = mask & (inputs.advantages < 0), mask.any(dim=1)
        log_ratio = torch.where(rows, result.log_ratio.squeeze(1), 0.0)
        metrics = {
            "topr/bad_weight": Metric(masked_sum(result.weights, bad), bad.sum()),
            "topr/log_ratio": Metric(log_ratio.sum(), rows.sum()),
        }
        return TokenLoss(loss=result.loss, metrics=metrics)


COMPONENT = Component(
    name="topr",
    factory=ToprLoss,
    summary="bad sequences weighted with their ratio to the sampler, at most 1 (TOPR)",
    needs=frozenset({"rollout_logprobs"}),
    # The ratio to the sampler is already there; a correction would put it on a second time. With top-p and the
    # like the sampler's log-probs are those of another distribution.
    conflicts=frozenset({"is_correction", "renormalized_sampling"}),
    # The gradient of a sequence's log-prob is the sum over its tokens.
    provides=frozenset({"aggregation:seq-mean-token-sum-norm", "off_policy"}),
)

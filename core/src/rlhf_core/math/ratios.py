"""Log-ratios of two policies at the sampled tokens, bounded so that their exponential is finite; a mask by their means;
and metrics of the mismatch, which is the difference between the trainer's and the sampler's log-probs.

Trainer and sampler compute with different kernels and precision, or the sampler had older weights. Metrics of the
mismatch are over a whole rollout batch: quantiles and effective sample sizes of parts cannot be merged.
"""

from __future__ import annotations

from ..batch.metric import Metric, Metrics
from ..lazy import Bool, Float, torch
from .sequences import row_mean

MAX_LOG_RATIO = 20.0
"""Largest size of a log-ratio, in nats. e^20 is 5e8: far beyond any clip range, and finite in float32 also after
multiplication with an advantage."""


def token_log_ratios(
    policy_logprobs: Float[torch.Tensor, "b a"],
    behavior_logprobs: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
) -> Float[torch.Tensor, "b a"]:
    """Return ``policy - behavior`` in nats, clamped to [-20, 20] with no gradient beyond; 0 at padding.

    Values at padding, nan included, have no effect.
    """
    # Padding is replaced before the arithmetic: a nan there would come back in the backward pass as 0 * nan.
    difference = torch.where(action_mask, policy_logprobs - behavior_logprobs, 0.0)
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def off_policy_mask(
    policy_logprobs: Float[torch.Tensor, "b a"],
    rollout_logprobs: Float[torch.Tensor, "b a"],
    advantages: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
    *,
    threshold: float,
) -> Bool[torch.Tensor, "b a"]:
    """Return False at tokens of a negative advantage in rows that the policy has moved away from; False at padding.

    ``A_t >= 0`` or ``mean over the row of (rollout - policy) <= threshold``. The mean estimates, in nats per token, the
    KL of the sampler from the policy. A bad answer that the policy would not give any more has little to teach and a
    gradient that may be large; a good one is kept however far away it is. A threshold that no row exceeds keeps all
    action tokens. No gradient flows, and values at padding, nan included, have no effect.

    Args:
        policy_logprobs: of the policy that is being trained.
        rollout_logprobs: of the sampler.
        threshold: ``delta`` of the paper, positive, in nats per token.

    Source: DeepSeek-AI 2025 (DeepSeek-V3.2), arXiv:2512.02556. TRL's mask is equal.
    """
    behind = torch.where(action_mask, rollout_logprobs - policy_logprobs.detach(), 0.0).double()
    is_near = row_mean(behind, action_mask) <= threshold  # (B, 1)
    return action_mask & ((advantages >= 0) | is_near)


def mismatch_metrics(
    old_logprobs: Float[torch.Tensor, "b a"],
    rollout_logprobs: Float[torch.Tensor, "b a"],
    action_mask: Bool[torch.Tensor, "b a"],
) -> Metrics:
    """Return the metrics of ``g = old - rollout`` (trainer minus sampler, nats) over action tokens.

    - ``mismatch/logprob_diff_mean``, ``_p99``, ``_max``: mean, 99th percentile and maximum of ``abs(g)``.
    - ``mismatch/k1``: mean of ``-g``, and ``mismatch/k3``: mean of ``exp(g) - 1 - g``, both unbiased estimates of
      KL(sampler || trainer), the second never negative. (Schulman 2020, "Approximating KL Divergence".)
    - ``mismatch/ess``: ``(sum w)^2 / (n sum w^2)`` of the token weights ``w = exp(g)``, and
      ``mismatch/ess_sequence`` of the sequence weights ``exp(sum of g)``: the share of the data that is left after
      weighting it, 1 for equal log-probs. (Kong 1992, "A note on importance sampling using standardized weights".)

    A batch without action tokens gives no metrics.
    """
    log_ratio = torch.where(action_mask, old_logprobs - rollout_logprobs, 0.0).double()  # (B, A)
    tokens = log_ratio[action_mask]
    if not len(tokens):
        return {}
    size = tokens.abs()
    sequences = log_ratio.sum(dim=1)[action_mask.any(dim=1)]
    rank = -(-99 * len(size) // 100)  # rounded up: 99 % of the tokens are at or below it
    bounded = tokens.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    values = {
        "logprob_diff_mean": size.mean(),
        # kthvalue rather than quantile, which refuses more than 2^24 numbers.
        "logprob_diff_p99": size.kthvalue(rank).values,
        "k1": -tokens.mean(),
        "k3": (torch.expm1(bounded) - bounded).mean(),
        "ess": effective_share(tokens),
        "ess_sequence": effective_share(sequences),
    }
    metrics = {f"mismatch/{name}": Metric(float(value)) for name, value in values.items()}
    metrics["mismatch/logprob_diff_max"] = Metric(float(size.max()), reduction="max")
    return metrics


def effective_share(log_weights: Float[torch.Tensor, " n"]) -> Float[torch.Tensor, ""]:
    """Return ``(sum w)^2 / (n sum w^2)`` of ``w = exp(log_weights)``, between 1 / n and 1.

    The weights are divided by the largest, which cancels in the quotient, so that none overflows.
    """
    weights = (log_weights - log_weights.max()).exp()
    return weights.sum().square() / (len(weights) * weights.square().sum())

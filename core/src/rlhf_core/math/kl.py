"""KL divergence to a reference, estimated from the log-probs of sampled tokens, and its adaptive coefficient."""

from __future__ import annotations

import math
from typing import Literal

from ..contracts.functions.kl import KlEstimator
from ..errors import NonFiniteError
from ..lazy import Bool, Float, torch

Tail = Literal["linear", "clamp"]
"""Form of an estimate beyond 10 nats."""

MAX_KL_ESTIMATE = 10.0
"""Nats per token from which on an estimate no longer follows its formula: one token to which the reference gives almost
no probability must not outweigh the rewards of a whole batch."""

MAX_WEIGHT = 10.0
"""Largest importance weight of a token in the unbiased gradient."""


def kl_estimate(
    policy_logprobs: Float[torch.Tensor, "*n"],
    ref_logprobs: Float[torch.Tensor, "*n"],
    estimator: KlEstimator,
    *,
    tail: Tail = "linear",
    action_mask: Bool[torch.Tensor, "*n"] | None = None,
) -> Float[torch.Tensor, "*n"]:
    """Return a per-token estimate of KL(policy || reference) for tokens sampled from the policy.

    ``estimator(policy - reference)``, in nats. Beyond 10 nats the tail decides:

    - ``linear``: the estimator's own. Ours go on along their tangents, so that the farther a token is from the
      reference, the more it is pulled back.
    - ``clamp``: the estimate stays in [-10, 10] and has *no* gradient beyond. As a loss it no longer pulls back the
      tokens that are farthest away. In a reward, where the estimate has no gradient, the clamp keeps one token from
      outweighing a batch.

    The result is at least float32.

    Args:
        estimator: a function of the log-ratio, such as a component of the hook ``rlhf_kl_estimators``.
        tail: ``linear`` or ``clamp``.
        action_mask: True at action tokens; elsewhere the log-ratio is 0 without a gradient, also for nan. Without a
            mask, nan gives nan.

    Raises:
        ValueError: the tail is unknown, or the estimator returned another shape.

    The clamp is that of OpenRLHF and verl.
    """
    dtype = torch.promote_types(policy_logprobs.dtype, torch.float32)
    log_ratio = policy_logprobs.to(dtype) - ref_logprobs.to(dtype)
    if action_mask is not None:
        log_ratio = torch.where(action_mask, log_ratio, 0.0)
    estimate, shape = estimator(log_ratio), tuple(log_ratio.shape)
    if estimate.shape != shape:
        raise ValueError(f"KL estimate of shape {tuple(estimate.shape)}: expected {shape}")
    if tail not in ("linear", "clamp"):
        raise ValueError(f"tail {tail!r} of a KL estimate: expected 'linear' or 'clamp'")
    return estimate if tail == "linear" else estimate.clamp(-MAX_KL_ESTIMATE, MAX_KL_ESTIMATE)


def unbiased_kl(
    policy_logprobs: Float[torch.Tensor, "*n"],
    old_logprobs: Float[torch.Tensor, "*n"],
    ref_logprobs: Float[torch.Tensor, "*n"],
    estimator: KlEstimator,
    action_mask: Bool[torch.Tensor, "*n"] | None = None,
) -> Float[torch.Tensor, "*n"]:
    """Return an estimate whose value is that of ``kl_estimate`` (tail ``clamp``) and whose gradient is the KL's own.

    The gradient with respect to a token's log-prob is ``w * l`` for every estimator, with ``l = policy - reference``
    and ``w = min(exp(policy - old), 10)``: the expectation of ``l * grad log policy`` under the policy is the gradient
    of the KL, and w corrects for tokens that the older policy sampled. With ``old == policy`` it is the gradient of
    ``l^2 / 2``. ``l`` is clamped to [-10, 10] here too, but beyond the clamp a token is still pulled back. The result
    is at least float32.

    Args:
        old_logprobs: log-probs of the policy that the tokens are taken to be sampled from; no gradient.
        ref_logprobs: log-probs of the reference; no gradient.
        estimator: of the value alone.
        action_mask: True at action tokens; elsewhere the result is 0 without a gradient, also for nan.

    Source: Tang and Munos 2025, "On a few pitfalls in KL divergence gradient estimation for RL", arXiv:2506.09477,
    for why the estimators' own gradients are not the KL's; the bound of 10 on w is OpenRLHF's, which does not bound l.
    """
    dtype = torch.promote_types(policy_logprobs.dtype, torch.float32)
    policy_logprobs, old_logprobs, ref_logprobs = (
        column.to(dtype) if action_mask is None else torch.where(action_mask, column.to(dtype), 0.0)
        for column in (policy_logprobs, old_logprobs.detach(), ref_logprobs.detach())
    )
    value = kl_estimate(
        policy_logprobs, ref_logprobs, estimator, tail="clamp", action_mask=action_mask
    ).detach()
    detached = policy_logprobs.detach()
    weight = (detached - old_logprobs).clamp(max=math.log(MAX_WEIGHT)).exp()
    log_ratio = (detached - ref_logprobs).clamp(-MAX_KL_ESTIMATE, MAX_KL_ESTIMATE)
    # The second summand is 0 in value, and its gradient is w * l.
    return value + weight * log_ratio * (policy_logprobs - detached)


def adapted_kl_coef(
    coef: float, kl: float, *, target: float, num_samples: int, horizon: int
) -> float:
    """Return the coefficient for the next step: raised when the KL is above the target, lowered when below.

    ``coef' = coef * (1 + clip(kl / target - 1, -0.2, 0.2) * min(num_samples / horizon, 1))``. At the target the
    coefficient stays.

    Args:
        coef: the coefficient in force, positive.
        kl: mean KL of the step, in the unit of ``target`` (nats per token in this framework).
        target: KL to keep, positive.
        num_samples: number of sequences of the step, an episode of several counted once.
        horizon: number of sequences over which the coefficient can change by about a factor e^0.2 = 1.22.

    Raises:
        NonFiniteError: the KL is nan or infinite.

    Source: Ziegler et al. 2019, arXiv:1909.08593, section 2.2. There the factor is ``num_samples / horizon`` without
    a bound; beyond 5 it can turn the coefficient negative, which would reward leaving the reference.
    """
    if not math.isfinite(kl):
        raise NonFiniteError(
            f"the KL to the reference is {kl}; expected a finite number, which the coefficient could follow. "
            "Continue from an earlier checkpoint with a lower learning rate.",
            code="training/kl-not-finite",
        )
    error = max(-0.2, min(0.2, kl / target - 1))
    return coef * (1 + error * min(num_samples / horizon, 1.0))

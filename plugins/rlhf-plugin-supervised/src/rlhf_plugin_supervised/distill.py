"""On-policy distillation: the policy is pulled towards a teacher, at what the policy itself wrote.

``sampled`` needs the teacher's log-prob of the sampled token alone. ``top_k`` computes the KL divergence over the
teacher's k most probable tokens; everything else is one more outcome, so both distributions sum to 1. Without it the
sums are no divergences: they can be negative, and a policy would lower the reverse one by moving probability away from
the tokens that are looked at.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from rlhf_core import Component, Config
from rlhf_core.capabilities import NO_ADVANTAGES
from rlhf_core.contracts import LossInputs, Metric, TokenLoss
from rlhf_core.lazy import Bool, Float, torch
from rlhf_core.math import masked_sum, unbiased_kl

MIN_REST = 1e-6
"""The probability of all other tokens together is at least this: a rest below is the rounding of a float32 sum."""


class DistillConfig(Config):
    divergence: Literal["sampled", "top_k"] = Field(
        "sampled",
        description="sampled: the KL is estimated from the sampled token alone; top_k: it is computed over the "
        "teacher's most probable tokens (algo.teacher.top_k of them) and all others as one",
    )
    direction: Literal["reverse", "forward", "jsd"] = Field(
        "reverse",
        description="top_k: reverse: KL(policy || teacher), which avoids what the teacher would not say; forward: "
        "KL(teacher || policy), which covers all that it would; jsd: the mean of the KLs of both to their mixture",
    )
    teacher_share: float | None = Field(
        None,
        gt=0.0,
        lt=1.0,
        description="share of the teacher in the mixture of jsd, which needs it. 0.5: Jensen-Shannon divergence; "
        "near 0 the gradient is like that of forward, near 1 like that of reverse",
    )

    @model_validator(mode="after")
    def _check_the_direction(self) -> DistillConfig:
        if self.direction != "reverse" and self.divergence == "sampled":
            raise ValueError(
                f"direction {self.direction} is an expectation over the teacher's tokens, and divergence sampled has "
                "only the policy's. Set divergence top_k, or direction reverse."
            )
        if (self.teacher_share is None) == (self.direction == "jsd"):
            raise ValueError(
                f"teacher_share {self.teacher_share} with direction {self.direction}: expected a number with jsd, and "
                "none with others. Set teacher_share 0.5, or another direction."
            )
        return self

    def needed_by_options(self) -> frozenset[str]:
        return frozenset({"teacher_top_k" if self.divergence == "top_k" else "teacher_logprobs"})


class TopKResult(NamedTuple):
    """Per position; all zero at padding. Only ``kl`` has a gradient."""

    kl: Float[torch.Tensor, "b a"]
    policy_mass: Float[torch.Tensor, "b a"]
    """Sum of the policy's probabilities of the teacher's tokens; at most 1."""
    teacher_mass: Float[torch.Tensor, "b a"]
    """Sum of the teacher's probabilities of these tokens; at most 1."""


def top_k_kl(
    policy_top_logprobs: Float[torch.Tensor, "b a k"],
    teacher_top_logprobs: Float[torch.Tensor, "b a k"],
    action_mask: Bool[torch.Tensor, "b a"],
    *,
    forward: bool,
    teacher_share: float | None = None,
) -> TopKResult:
    """Return the divergence at each position, in nats, over the teacher's k tokens and the rest as one outcome.

    ``reverse: sum over k of q log(q / p) + q_rest log(q_rest / p_rest)`` with q the policy and p the teacher, and
    ``forward`` with the two exchanged. Never negative up to rounding, 0 for equal log-probs, and at most the divergence
    over the whole vocabulary, which it is when k tokens are all there are.

    With a share b it is the generalized Jensen-Shannon divergence ``b KL(p || m) + (1 - b) KL(q || m)`` to the mixture
    ``m = b p + (1 - b) q``, at most ``-b log b - (1 - b) log(1 - b)``. Divided by b it goes to ``forward`` as b goes to
    0, and divided by ``1 - b`` to ``reverse`` as b goes to 1.

    The rest is ``1 - sum over k``, at least 1e-6, and has no gradient below. What stands at padding, nan included, has
    no effect.

    Args:
        policy_top_logprobs: at the teacher's tokens.
        forward: KL(teacher || policy) instead of KL(policy || teacher). Without effect if there is a share.
        teacher_share: b, the teacher's share of the mixture; None: a KL.

    Source: Agarwal et al. 2023 (GKD), arXiv:2306.13649, for both directions and their mixture, equation 1, on the
    student's own samples; the truncation to k tokens and a rest is ours and others', see docs/algorithms.
    """
    mask = action_mask.unsqueeze(-1)
    # Replaced before the arithmetic: a nan at padding would come back in the backward pass as 0 * nan.
    policy = torch.where(mask, policy_top_logprobs, -1.0)  # (B, A, K)
    teacher = torch.where(mask, teacher_top_logprobs.detach(), -1.0)  # (B, A, K)
    policy_rest, teacher_rest = _rest(policy), _rest(teacher)  # (B, A)
    if teacher_share is not None:
        kl = _mixed(policy, teacher, teacher_share) + _mixed(
            policy_rest.unsqueeze(-1), teacher_rest.unsqueeze(-1), teacher_share
        )
    elif forward:
        kl = _kl(teacher, policy) + _kl(teacher_rest.unsqueeze(-1), policy_rest.unsqueeze(-1))
    else:
        kl = _kl(policy, teacher) + _kl(policy_rest.unsqueeze(-1), teacher_rest.unsqueeze(-1))
    return TopKResult(
        kl=torch.where(action_mask, kl, 0.0),
        policy_mass=torch.where(action_mask, policy.detach().exp().sum(dim=-1), 0.0),
        teacher_mass=torch.where(action_mask, teacher.exp().sum(dim=-1), 0.0),
    )


def _rest(logprobs: torch.Tensor) -> torch.Tensor:
    """(B, A, K) -> (B, A): log-prob of all other tokens together."""
    # expm1 keeps the digits of a small rest.
    return (-torch.expm1(logprobs.logsumexp(dim=-1))).clamp(min=MIN_REST).log()


def _kl(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """(B, A, K) -> (B, A)"""
    return (first.exp() * (first - second)).sum(dim=-1)


def _mixed(policy: torch.Tensor, teacher: torch.Tensor, share: float) -> torch.Tensor:
    """(B, A, K) -> (B, A): part of the generalized Jensen-Shannon divergence."""
    mixture = torch.logaddexp(teacher + math.log(share), policy + math.log1p(-share))
    return share * _kl(teacher, mixture) + (1.0 - share) * _kl(policy, mixture)


class DistillLoss:
    """KL between the policy and a teacher, at the policy's own samples.

    With ``sampled`` the value is ``policy - teacher`` at the sampled token, and the gradient is that of the reverse KL:
    a policy gradient with the advantage ``teacher - policy`` of each token, in [-10, 10] nats, and the weight
    ``min(exp(policy - old), 10)``.
    """

    def __init__(self, config: DistillConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        return self._top_k(inputs) if self.config.divergence == "top_k" else self._sampled(inputs)

    def _sampled(self, inputs: LossInputs) -> TokenLoss:
        assert inputs.teacher_logprobs is not None, "divergence=sampled needs 'teacher_logprobs'"
        mask = inputs.action_mask
        loss = unbiased_kl(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.teacher_logprobs,
            lambda log_ratio: log_ratio,
            mask,
        )
        return TokenLoss(
            loss=loss, metrics={"distill/kl": Metric(masked_sum(loss.detach(), mask), mask.sum())}
        )

    def _top_k(self, inputs: LossInputs) -> TokenLoss:
        policy, teacher = inputs.policy_top_logprobs, inputs.teacher_top_logprobs
        assert policy is not None, "divergence=top_k needs 'teacher_top_k'"
        assert teacher is not None, "divergence=top_k needs 'teacher_top_k'"
        mask = inputs.action_mask
        forward = self.config.direction == "forward"
        result = top_k_kl(
            policy, teacher, mask, forward=forward, teacher_share=self.config.teacher_share
        )
        count = mask.sum()
        metrics = {
            "distill/kl": Metric(masked_sum(result.kl.detach(), mask), count),
            "distill/policy_mass": Metric(masked_sum(result.policy_mass, mask), count),
            "distill/teacher_mass": Metric(masked_sum(result.teacher_mass, mask), count),
        }
        return TokenLoss(loss=result.kl, metrics=metrics)


COMPONENT = Component(
    name="distill",
    factory=DistillLoss,
    config=DistillConfig,
    summary="KL to a teacher on the policy's own samples (on-policy distillation)",
    provides=frozenset({"aggregation:token-mean", "off_policy", NO_ADVANTAGES}),
)

"""The components: holders of their options that call the formulas and report what they did."""

from __future__ import annotations

import torch

from rlhf_core.contracts import LossInputs, Metric, TokenLoss
from rlhf_core.math import masked_sum, unbiased_kl

from .config import DistillConfig, SftConfig
from .top_k import top_k_kl


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
            inputs.policy_logprobs, inputs.old_logprobs, inputs.teacher_logprobs, "k1", mask
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
        result = top_k_kl(policy, teacher, mask, forward=forward)
        count = mask.sum()
        metrics = {
            "distill/kl": Metric(masked_sum(result.kl.detach(), mask), count),
            "distill/policy_mass": Metric(masked_sum(result.policy_mass, mask), count),
            "distill/teacher_mass": Metric(masked_sum(result.teacher_mass, mask), count),
        }
        return TokenLoss(loss=result.kl, metrics=metrics)


class SftLoss:
    """Negative log-likelihood of the given responses: ``-log policy`` at each of their tokens, 0 at padding."""

    def __init__(self, config: SftConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        mask = inputs.action_mask
        loss = -torch.where(mask, inputs.policy_logprobs, 0.0)
        return TokenLoss(
            loss=loss, metrics={"sft/nll": Metric(masked_sum(loss.detach(), mask), mask.sum())}
        )

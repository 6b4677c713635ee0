"""The components: holders of their options that call the formulas and report what they did."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_core.contracts import LossInputs, Metric, Metrics, TokenLoss
from rlhf_core.math import masked_sum

from .config import GmpoConfig, LuspoConfig, VespoConfig
from .gmpo import GmpoResult, gmpo_loss
from .luspo import LuspoResult, luspo_loss
from .vespo import vespo_loss


class GmpoLoss:
    """The geometric mean of clipped ratios."""

    def __init__(self, config: GmpoConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        result = gmpo_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            inputs.action_mask,
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
        )
        return TokenLoss(loss=result.loss, metrics=_metrics(result, inputs.action_mask))


class LuspoLoss:
    """The clipped sequence ratio, to be summed over tokens."""

    def __init__(self, config: LuspoConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        result = luspo_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            inputs.action_mask,
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
        )
        return TokenLoss(loss=result.loss, metrics=_metrics(result, inputs.action_mask))


class VespoLoss:
    """The log-prob, weighted with a kernel of the sequence's importance weight."""

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

    def _behavior(self, inputs: LossInputs) -> Tensor:
        if self.config.behavior == "old":
            return inputs.old_logprobs
        assert inputs.rollout_logprobs is not None, "behavior=rollout needs 'rollout_logprobs'"
        return inputs.rollout_logprobs


def _metrics(result: GmpoResult | LuspoResult, mask: Tensor) -> Metrics:
    count = mask.sum()
    return {
        "policy/sequence_ratio": Metric(masked_sum(result.ratio, mask), count),
        "clip/fraction_low": Metric(result.clipped_low.sum(), count),
        "clip/fraction_high": Metric(result.clipped_high.sum(), count),
    }

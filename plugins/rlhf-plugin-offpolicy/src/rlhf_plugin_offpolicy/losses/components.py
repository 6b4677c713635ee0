"""The components: holders of their options that call the formulas and report what they did."""

from __future__ import annotations

import torch

from rlhf_core.contracts import LossInputs, Metric, TokenLoss
from rlhf_core.math import masked_sum

from .cispo import cispo_loss
from .config import CispoConfig, DecoupledPpoConfig, DppoConfig, ToprConfig
from .decoupled_ppo import decoupled_ppo_loss
from .dppo import dppo_loss
from .topr import topr_loss

DPPO_THRESHOLDS = {"tv": 0.15, "kl": 0.05}
"""Where the option does not say."""


class CispoLoss:
    """The log-prob, weighted with the bounded ratio."""

    def __init__(self, config: CispoConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        mask = inputs.action_mask
        result = cispo_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            mask,
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
        )
        count = mask.sum()
        metrics = {
            "policy/ratio": Metric(masked_sum(result.ratio, mask), count),
            "cispo/bounded_low": Metric(result.bounded_low.sum(), count),
            "cispo/bounded_high": Metric(result.bounded_high.sum(), count),
        }
        return TokenLoss(loss=result.loss, metrics=metrics)


class DppoLoss:
    """The log-prob, weighted with the ratio, inside a trust region."""

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


class ToprLoss:
    """The log-prob, with bad sequences weighted by their ratio to the sampler."""

    def __init__(self, config: ToprConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        assert inputs.rollout_logprobs is not None, "topr is registered with needs={'rollout...'}"
        mask = inputs.action_mask
        result = topr_loss(inputs.policy_logprobs, inputs.rollout_logprobs, inputs.advantages, mask)
        bad, rows = mask & (inputs.advantages < 0), mask.any(dim=1)
        log_ratio = torch.where(rows, result.log_ratio.squeeze(1), 0.0)
        metrics = {
            "topr/bad_weight": Metric(masked_sum(result.weights, bad), bad.sum()),
            "topr/log_ratio": Metric(log_ratio.sum(), rows.sum()),
        }
        return TokenLoss(loss=result.loss, metrics=metrics)


class DecoupledPpoLoss:
    """The clipped loss around the old policy, weighted by its ratio to the sampler."""

    def __init__(self, config: DecoupledPpoConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        assert inputs.rollout_logprobs is not None, "registered with needs={'rollout_logprobs'}"
        mask, config = inputs.action_mask, self.config
        result = decoupled_ppo_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.rollout_logprobs,
            inputs.advantages,
            mask,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            max_weight=config.max_weight,
            drop_beyond=config.beyond == "drop",
        )
        count = mask.sum()
        metrics = {
            "policy/ratio": Metric(masked_sum(result.ratio, mask), count),
            "decoupled/weight": Metric(masked_sum(result.weights, mask), count),
            "decoupled/fraction_beyond": Metric(result.beyond.sum(), count),
            "clip/fraction_low": Metric(result.clipped_low.sum(), count),
            "clip/fraction_high": Metric(result.clipped_high.sum(), count),
        }
        return TokenLoss(loss=result.loss, metrics=metrics)

"""The components. Both select tokens once per optimizer step, so how the step is cut has no influence."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rlhf_core.contracts import LossInputs, Metric, StepColumns, TokenLoss
from rlhf_core.math import masked_sum

from .config import ClipCovConfig, KlCovConfig
from .losses import clip_cov_loss, kl_cov_loss
from .selection import drawn_within, largest_positive, num_selected, token_covariances

DETACHED = "detached"
PENALIZED = "penalized"


class ClipCovLoss:
    """The clipped policy loss without a few tokens drawn among those of high covariance."""

    def __init__(self, config: ClipCovConfig) -> None:
        self.config = config

    def prepare(self, step: StepColumns) -> Mapping[str, Tensor]:
        """Return 1 at the tokens that get no gradient in this step."""
        mask, config = step.action_mask, self.config
        chosen = drawn_within(
            _covariances(step),
            mask,
            low=config.cov_low,
            high=config.cov_high,
            count=num_selected(config.fraction, mask),
            generator=torch.Generator().manual_seed(step.seed),
        )
        return {DETACHED: chosen.to(step.advantages.dtype)}

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        mask, config = inputs.action_mask, self.config
        detached = _selected(inputs, DETACHED)
        result = clip_cov_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            mask,
            detached,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
        )
        count = mask.sum()
        metrics = {
            "policy/ratio": Metric(masked_sum(result.ratio, mask), count),
            "clip/fraction_low": Metric(result.clipped_low.sum(), count),
            "clip/fraction_high": Metric(result.clipped_high.sum(), count),
            "clip/fraction_cov": Metric(detached.sum(), count),
        }
        return TokenLoss(loss=result.loss, metrics=metrics)


class KlCovLoss:
    """The unclipped policy loss with a KL penalty at the tokens of the highest covariance."""

    def __init__(self, config: KlCovConfig) -> None:
        self.config = config

    def prepare(self, step: StepColumns) -> Mapping[str, Tensor]:
        """Return 1 at the tokens that are penalized in this step."""
        count = num_selected(self.config.fraction, step.action_mask)
        chosen = largest_positive(_covariances(step), step.action_mask, count=count)
        return {PENALIZED: chosen.to(step.advantages.dtype)}

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        mask = inputs.action_mask
        penalized = _selected(inputs, PENALIZED)
        result = kl_cov_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            mask,
            penalized,
            kl_coef=self.config.kl_coef,
        )
        count = mask.sum()
        metrics = {
            "policy/ratio": Metric(masked_sum(result.ratio, mask), count),
            "kl_cov/fraction": Metric(penalized.sum(), count),
            "kl_cov/abs_log_ratio": Metric(
                masked_sum(result.abs_log_ratio, penalized), penalized.sum()
            ),
        }
        return TokenLoss(loss=result.loss, metrics=metrics)


def _covariances(step: StepColumns) -> Tensor:
    assert step.old_logprobs is not None, "registered with needs={'old_logprobs'}"
    return token_covariances(step.advantages, step.old_logprobs, step.action_mask)


def _selected(inputs: LossInputs, name: str) -> Tensor:
    """Where the prepared column is 1, as bool; False at padding, whatever stands there."""
    assert name in inputs.prepared, "registered with provides={'prepares_step'}"
    return (inputs.prepared[name] > 0.5) & inputs.action_mask

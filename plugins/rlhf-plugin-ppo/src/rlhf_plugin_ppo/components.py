"""The components: holders of their options that call the formulas and report what they did."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_core.contracts import Advantages, LossInputs, Metric, RewardBatch, TokenLoss
from rlhf_core.math import masked_sum, whiten

from .clipped_loss import clipped_policy_loss
from .config import GaeConfig, PpoLossConfig
from .gae import gae_advantages


class GaeEstimator:
    """Advantages from a critic; its targets are the advantages before whitening, plus the values."""

    def __init__(self, config: GaeConfig) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        assert batch.values is not None, "gae is registered with needs={'values'}"
        mask, values, config = batch.action_mask, batch.values, self.config
        final = self._final_values(batch)

        def estimate(lambda_: float) -> Tensor:
            return gae_advantages(
                batch.token_rewards,
                values,
                mask,
                gamma=config.gamma,
                lambda_=lambda_,
                final_values=final,
            )

        advantages = estimate(config.lambda_)
        critic_lambda = config.lambda_ if config.value_lambda_ is None else config.value_lambda_
        targets = advantages if critic_lambda == config.lambda_ else estimate(critic_lambda)
        returns = torch.where(mask, targets + values, 0.0)
        if config.whiten != "none":
            advantages = whiten(advantages, mask, divide_by_std=config.whiten == "full")
        return Advantages(advantages=advantages, returns=returns)

    def _final_values(self, batch: RewardBatch) -> Tensor | None:
        if not self.config.bootstrap_truncated:
            return None
        assert batch.final_values is not None, "bootstrap_truncated brings a need for final_values"
        return torch.where(batch.truncated, batch.final_values, 0.0)


class PpoLoss:
    """The clipped policy loss."""

    def __init__(self, config: PpoLossConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        mask, config = inputs.action_mask, self.config
        result = clipped_policy_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            mask,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            dual_clip=config.dual_clip,
        )
        count = mask.sum()
        metrics = {
            "policy/ratio": Metric(masked_sum(result.ratio, mask), count),
            "clip/fraction_low": Metric(result.clipped_low.sum(), count),
            "clip/fraction_high": Metric(result.clipped_high.sum(), count),
        }
        if config.dual_clip is not None:
            metrics["clip/fraction_dual"] = Metric(result.clipped_dual.sum(), count)
        return TokenLoss(loss=result.loss, metrics=metrics)

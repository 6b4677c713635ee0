"""The loss components: holders of their options that call the formulas and report what they did."""

from __future__ import annotations

from torch import Tensor

from rlhf_core.contracts import LossInputs, Metric, TokenLoss
from rlhf_core.math import masked_sum

from .gspo import GspoResult, gspo_loss, gspo_token_loss
from .loss_config import GspoConfig


class GspoLoss:
    """The clipped ratio of the sequence."""

    def __init__(self, config: GspoConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        result = gspo_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            inputs.action_mask,
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
        )
        return _token_loss(result, inputs.action_mask)


class GspoTokenLoss:
    """The clipped ratio of the sequence, with a gradient through each token by itself."""

    def __init__(self, config: GspoConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        result = gspo_token_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            inputs.action_mask,
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
        )
        return _token_loss(result, inputs.action_mask)


def _token_loss(result: GspoResult, mask: Tensor) -> TokenLoss:
    count = mask.sum()
    metrics = {
        "policy/sequence_ratio": Metric(masked_sum(result.ratio, mask), count),
        "clip/fraction_low": Metric(result.clipped_low.sum(), count),
        "clip/fraction_high": Metric(result.clipped_high.sum(), count),
    }
    return TokenLoss(loss=result.loss, metrics=metrics)

"""The components: holders of their options that call the formulas and report what they did."""

from __future__ import annotations

from rlhf_core.contracts import LossInputs, Metric, TokenLoss
from rlhf_core.math import masked_sum

from .config import GpgConfig, SapoConfig
from .gpg import gpg_loss
from .sapo import sapo_loss


class SapoLoss:
    """The softly gated policy loss."""

    def __init__(self, config: SapoConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        mask = inputs.action_mask
        result = sapo_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            mask,
            tau_pos=self.config.tau_pos,
            tau_neg=self.config.tau_neg,
        )
        count = mask.sum()
        metrics = {
            "policy/ratio": Metric(masked_sum(result.ratio, mask), count),
            "sapo/gate": Metric(masked_sum(result.gate, mask), count),
        }
        return TokenLoss(loss=result.loss, metrics=metrics)


class GpgLoss:
    """The plain policy gradient."""

    def __init__(self, config: GpgConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        return TokenLoss(
            loss=gpg_loss(inputs.policy_logprobs, inputs.advantages, inputs.action_mask)
        )

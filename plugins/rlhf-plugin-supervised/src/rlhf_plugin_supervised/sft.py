"""Supervised fine-tuning: the negative log-likelihood of given responses.

Usually a further loss beside a policy loss (``--algo.terms.use sft``), on rows of ``supervised.data``.
"""

from __future__ import annotations

from rlhf_core import Component, Config
from rlhf_core.capabilities import NO_ADVANTAGES
from rlhf_core.contracts import LossInputs, Metric, TokenLoss
from rlhf_core.lazy import torch
from rlhf_core.math import masked_sum


class SftConfig(Config):
    """Supervised fine-tuning has no options; its data is that of the section ``supervised``."""


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


COMPONENT = Component(
    name="sft",
    factory=SftLoss,
    config=SftConfig,
    summary="negative log-likelihood of given responses; as a further loss, with --algo.terms.use",
    needs=frozenset({"supervised_data"}),
    provides=frozenset({"aggregation:token-mean", "off_policy", NO_ADVANTAGES}),
)

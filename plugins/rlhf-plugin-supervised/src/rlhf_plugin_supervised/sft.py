"""Supervised fine-tuning: the negative log-likelihood of given responses, or DFT, which weighs it by the probability.

The loss of ``rlhf sft``; beside a policy loss (``--algo.terms.use sft``) it is on rows of ``supervised.data``.

Seen as a policy gradient, the likelihood gives each token the reward ``1 / pi``, large for what the model finds
unlikely. Dynamic fine-tuning (DFT) multiplies it by ``pi``, without a gradient, so that the reward is 1 for each token.

Source of DFT: Wu et al. 2025, arXiv:2508.05629, equation 9.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.capabilities import NO_ADVANTAGES
from rlhf_core.contracts import LossInputs, Metric, TokenLoss
from rlhf_core.lazy import Float, torch
from rlhf_core.math import masked_sum


class SftConfig(Config):
    loss: Literal["nll", "dft"] = Field(
        "nll",
        description="nll: negative log-likelihood; dft: the same times the token's probability, so that unlikely "
        "tokens pull no harder than likely ones (dynamic fine-tuning)",
    )


def dft_loss(nll: Float[torch.Tensor, "b a"]) -> Float[torch.Tensor, "b a"]:
    """Return ``-sg(pi) * log pi`` of each token, at most 1 / e, with ``sg`` for no gradient; the gradient is ``-pi``.

    A token that is certain, or impossible, has the loss 0; where all tokens have the same probability it is the
    likelihood's loss times a constant.

    Args:
        nll: negative log-likelihood of each token, in nats; 0 at padding.

    Source: Wu et al. 2025, arXiv:2508.05629, equation 9. TRL's ``dft`` is equal.
    """
    return nll * torch.exp(-nll.detach().clamp(min=0.0))  # rounding may take a log-prob above 0


class SftLoss:
    """Negative log-likelihood of the given responses: ``-log policy`` at each of their tokens, 0 at padding; with
    ``dft`` times ``policy``."""

    def __init__(self, config: SftConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        mask = inputs.action_mask
        nll = -torch.where(mask, inputs.policy_logprobs, 0.0)
        return TokenLoss(
            loss=dft_loss(nll) if self.config.loss == "dft" else nll,
            metrics={"sft/nll": Metric(masked_sum(nll.detach(), mask), mask.sum())},
        )


COMPONENT = Component(
    name="sft",
    factory=SftLoss,
    config=SftConfig,
    summary="negative log-likelihood of given responses; as a further loss, with --algo.terms.use",
    needs=frozenset({"supervised_data"}),
    provides=frozenset({"aggregation:token-mean", "off_policy", NO_ADVANTAGES}),
)

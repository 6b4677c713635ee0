"""Supervised fine-tuning: the negative log-likelihood of given responses, or DFT, which weighs it by the probability.

The loss of ``rlhf sft``; beside a policy loss (``--algo.terms.use sft``) it is on rows of ``supervised.data``.

Seen as a policy gradient, the likelihood gives each token the reward ``1 / pi``, large for what the model finds
unlikely. Dynamic fine-tuning (DFT) multiplies it by ``pi``, without a gradient, so that the reward is 1 for each token.

With smoothed labels each token's target is a mixture of the given token and of all tokens alike.

Source of DFT: Wu et al. 2025, arXiv:2508.05629, equation 9; of label smoothing: Szegedy et al. 2015, arXiv:1512.00567,
section 7.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

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
    label_smoothing: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="share of the target, from 0 to below 1, that all tokens of the vocabulary get alike; the given "
        "token gets the rest",
    )

    @model_validator(mode="after")
    def _smoothing_belongs_to_the_likelihood(self) -> SftConfig:
        if self.label_smoothing and self.loss != "nll":
            raise ValueError(
                f"label_smoothing {self.label_smoothing} with loss {self.loss}: expected loss nll, whose target it "
                "changes. Set label_smoothing 0, or loss nll."
            )
        return self

    def needed_by_options(self) -> frozenset[str]:
        return frozenset({"mean_logprobs"}) if self.label_smoothing else frozenset()


def dft_loss(nll: Float[torch.Tensor, "b a"]) -> Float[torch.Tensor, "b a"]:
    """Return ``-sg(pi) * log pi`` of each token, at most 1 / e, with ``sg`` for no gradient; the gradient is ``-pi``.

    A token that is certain, or impossible, has the loss 0; where all tokens have the same probability it is the
    likelihood's loss times a constant.

    Args:
        nll: negative log-likelihood of each token, in nats; 0 at padding.

    Source: Wu et al. 2025, arXiv:2508.05629, equation 9. TRL's ``dft`` is equal.
    """
    return nll * torch.exp(-nll.detach().clamp(min=0.0))  # rounding may take a log-prob above 0


def smoothed_loss(
    nll: Float[torch.Tensor, "b a"],
    mean_nll: Float[torch.Tensor, "b a"],
    *,
    label_smoothing: float,
) -> Float[torch.Tensor, "b a"]:
    """Return ``(1 - eps) * -log pi(a) + eps / V * sum over v of -log pi(v)`` of each token, in nats: the cross-entropy
    to a target that has ``1 - eps`` at the given token a, and ``eps / V`` at each of the V tokens.

    Eps 0 is the likelihood. The smallest loss is the entropy of the target, and the model that has it is never certain.

    Args:
        nll: negative log-likelihood of each given token.
        mean_nll: mean of the negative log-likelihoods of all tokens of the vocabulary, in nats.

    Source: Szegedy et al. 2015, arXiv:1512.00567, section 7. ``torch.nn.functional.cross_entropy`` and Transformers'
    ``LabelSmoother``, which TRL's SFT takes, are equal.
    """
    return (1.0 - label_smoothing) * nll + label_smoothing * mean_nll


class SftLoss:
    """Negative log-likelihood of the given responses: ``-log policy`` at each of their tokens, 0 at padding; with
    ``dft`` times ``policy``, with ``label_smoothing`` towards a mixture."""

    def __init__(self, config: SftConfig) -> None:
        self.config = config

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        mask = inputs.action_mask
        nll = -torch.where(mask, inputs.policy_logprobs, 0.0)
        return TokenLoss(
            loss=self._loss(nll, inputs),
            metrics={"sft/nll": Metric(masked_sum(nll.detach(), mask), mask.sum())},
        )

    def _loss(self, nll: torch.Tensor, inputs: LossInputs) -> torch.Tensor:
        if self.config.loss == "dft":
            return dft_loss(nll)
        if not self.config.label_smoothing:
            return nll
        assert inputs.mean_logprobs is not None, "label_smoothing needs 'mean_logprobs'"
        mean_nll = -torch.where(inputs.action_mask, inputs.mean_logprobs, 0.0)
        return smoothed_loss(nll, mean_nll, label_smoothing=self.config.label_smoothing)


COMPONENT = Component(
    name="sft",
    factory=SftLoss,
    config=SftConfig,
    summary="negative log-likelihood of given responses; as a further loss, with --algo.terms.use",
    needs=frozenset({"supervised_data"}),
    provides=frozenset({"aggregation:token-mean", "off_policy", NO_ADVANTAGES}),
)

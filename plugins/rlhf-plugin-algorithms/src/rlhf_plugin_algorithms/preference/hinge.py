"""Hinge loss on DPO's margin: a pair that is won by enough has no gradient.

The calibration loss of SLiC-HF, with the reference's log-probs subtracted as in RSO. SLiC-HF itself compares the
policy's log-probs alone, and stays near the reference by a further term of supervised fine-tuning.

Symbols of the papers: ``gamma`` (RSO) is ``beta``, the margin ``delta`` (SLiC-HF) is ``1 / beta`` nats, ``y_w`` the
chosen answer, ``y_l`` the rejected one. Axes: ``n`` pairs.

Source: Zhao et al. 2023, arXiv:2305.10425 (SLiC-HF), equation 1; with the reference, Liu et al. 2023, arXiv:2309.06657
(RSO), the loss hinge-norm.
"""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Metric, PreferenceInputs, PreferenceResult
from rlhf_core.lazy import Float, torch


class HingeConfig(Config):
    beta: float = Field(
        0.1,
        gt=0.0,
        le=100.0,
        description="reward per nat of log-ratio; a pair has no gradient once its log-ratios differ by 1 / beta",
    )


def hinge_loss(
    chosen_log_ratio: Float[torch.Tensor, " n"],
    rejected_log_ratio: Float[torch.Tensor, " n"],
    *,
    beta: float,
) -> Float[torch.Tensor, " n"]:
    """Return ``max(0, 1 - beta * (log(pi / pi_ref)(y_w) - log(pi / pi_ref)(y_l)))`` of each pair, without a unit.

    Where policy and reference agree the loss is 1. Up to a margin of 1 its gradient is -beta by the chosen answer's
    log-prob and beta by the rejected one's; from there on there is none.

    Args:
        chosen_log_ratio: log-prob under the policy minus that under the reference, summed over the answer's tokens.
        rejected_log_ratio: the same of the rejected answer.

    Source: Liu et al. 2023, arXiv:2309.06657, hinge-norm, which has the reference where SLiC-HF (arXiv:2305.10425) has
    none. TRL's ``hinge`` is equal; OpenRLHF has none.
    """
    margin = beta * (chosen_log_ratio - rejected_log_ratio)  # (N,)
    return torch.relu(1.0 - margin)


class HingeLoss:
    """Preference loss ``hinge``."""

    def __init__(self, config: HingeConfig) -> None:
        self.config = config

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult:
        beta = self.config.beta
        chosen, rejected = inputs.chosen.log_ratio, inputs.rejected.log_ratio  # (N,) each
        loss = hinge_loss(chosen, rejected, beta=beta)
        return PreferenceResult(
            loss=loss,
            chosen_rewards=beta * chosen.detach(),
            rejected_rewards=beta * rejected.detach(),
            metrics={"hinge/fraction_without_gradient": Metric((loss == 0).sum(), len(loss))},
        )


COMPONENT = Component(
    name="hinge",
    factory=HingeLoss,
    config=HingeConfig,
    summary="hinge loss on the difference of implicit rewards (SLiC with a reference, RSO)",
    needs=frozenset({"ref_logprobs"}),
)

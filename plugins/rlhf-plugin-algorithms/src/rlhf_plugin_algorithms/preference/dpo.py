"""DPO: the policy is its own reward model, trained as a classifier of which answer was preferred.

The policy that is best for a reward under a KL penalty of strength beta gives each answer the reward
``beta * log(pi / pi_ref)``, up to a term of the prompt that cancels in a pair. So the Bradley-Terry likelihood of the
preferences is a function of log-probs alone. With another f-divergence in place of the KL the reward is
``beta * f'(pi / pi_ref)``.

Symbols of the papers: ``y_w`` is the chosen answer, ``y_l`` the rejected one, ``log(pi_theta / pi_ref)`` the log-ratio,
``u`` the ratio ``pi_theta / pi_ref`` of f-DPO. Axes: ``n`` pairs or answers.

Source: Rafailov et al. 2023, arXiv:2305.18290, equation 7; with other divergences, Wang et al. 2023 (f-DPO),
arXiv:2309.16240.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from rlhf_core import Component, Config
from rlhf_core.contracts import PreferenceInputs, PreferenceResult
from rlhf_core.lazy import Float, torch

FDivergence = Literal["reverse_kl", "js_divergence", "alpha_divergence", "forward_kl"]
MAX_EXPONENT = 80.0
"""Largest exponent of a power of the ratio; an answer that is rarer still has its score, and no gradient. ``exp(80)``
times any beta is finite in float32."""


class DpoConfig(Config):
    beta: float = Field(
        0.1,
        gt=0.0,
        le=100.0,
        description="strength of the KL penalty to the reference that the loss stands for: reward per nat of log-ratio",
    )
    f_divergence: FDivergence = Field(
        "reverse_kl",
        description="divergence from the reference in place of the KL (f-DPO): js_divergence, alpha_divergence and "
        "forward_kl hold the policy ever more to all that the reference says",
    )
    alpha: float | None = Field(
        None,
        gt=0.0,
        lt=1.0,
        description="alpha of alpha_divergence, which needs it: near 0 it is reverse_kl, near 1 forward_kl",
    )

    @model_validator(mode="after")
    def _alpha_belongs_to_its_divergence(self) -> DpoConfig:
        if (self.alpha is None) == (self.f_divergence == "alpha_divergence"):
            raise ValueError(
                f"alpha {self.alpha} with f_divergence {self.f_divergence}: expected a number with alpha_divergence, "
                "and none with others. Set alpha 0.5, or another f_divergence."
            )
        return self


def divergence_score(
    log_ratio: Float[torch.Tensor, " n"], f_divergence: FDivergence, alpha: float | None
) -> Float[torch.Tensor, " n"]:
    """Return ``f'(u)`` of each answer's ratio ``u = exp(log_ratio)``, up to a constant; 0 where the models agree.

    ``reverse_kl: log u``, ``js_divergence: log(2 u / (1 + u))``, ``alpha_divergence: (1 - u^-alpha) / alpha``,
    ``forward_kl: 1 - 1 / u``. The slope at 0 is 1, for ``js_divergence`` 1/2. Scores above 0 are bounded by ln 2,
    1 / alpha and 1; of those below, the exponent is at most 80.

    Source: Wang et al. 2023, arXiv:2309.16240, table 1. TRL's ``f_divergence_type`` is equal; its
    ``f_alpha_divergence_coef`` is 1 - alpha.
    """
    if f_divergence == "reverse_kl":
        return log_ratio
    if f_divergence == "js_divergence":
        return math.log(2.0) + torch.nn.functional.logsigmoid(log_ratio)
    power = 1.0 if alpha is None else alpha  # forward_kl has none, and is the limit of alpha 1
    # expm1 keeps the digits of small log-ratios.
    return -torch.expm1((-power * log_ratio).clamp(max=MAX_EXPONENT)) / power


def dpo_loss(
    chosen_log_ratio: Float[torch.Tensor, " n"],
    rejected_log_ratio: Float[torch.Tensor, " n"],
    *,
    beta: float,
) -> Float[torch.Tensor, " n"]:
    """Return ``-log sigmoid(beta * (log(pi / pi_ref)(y_w) - log(pi / pi_ref)(y_l)))`` of each pair, in nats.

    At least 0. Where policy and reference agree the loss is ln 2, and its gradient is -beta / 2 by the chosen answer's
    log-prob and beta / 2 by the rejected one's. The gradient fades as the chosen answer wins, and is at most beta where
    it loses. Beta 0 gives ln 2 everywhere.

    Args:
        chosen_log_ratio: log-prob under the policy minus that under the reference, summed over the answer's tokens.
        rejected_log_ratio: the same of the rejected answer. With another divergence both are its scores.

    Source: Rafailov et al. 2023, arXiv:2305.18290, equation 7. OpenRLHF's ``DPOLoss`` and TRL's ``sigmoid`` are equal.
    """
    margin = beta * (chosen_log_ratio - rejected_log_ratio)  # (N,)
    return -torch.nn.functional.logsigmoid(margin)


class DpoLoss:
    """Preference loss ``dpo``."""

    def __init__(self, config: DpoConfig) -> None:
        self.config = config

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult:
        beta = self.config.beta
        chosen, rejected = (
            divergence_score(answers.log_ratio, self.config.f_divergence, self.config.alpha)
            for answers in (inputs.chosen, inputs.rejected)
        )  # (N,) each
        return PreferenceResult(
            loss=dpo_loss(chosen, rejected, beta=beta),
            chosen_rewards=beta * chosen.detach(),
            rejected_rewards=beta * rejected.detach(),
        )


COMPONENT = Component(
    name="dpo",
    factory=DpoLoss,
    config=DpoConfig,
    summary="logistic loss on the difference of implicit rewards (DPO)",
    needs=frozenset({"ref_logprobs"}),
)

"""DPO: the policy is its own reward model, trained as a classifier of which answer was preferred.

The policy that is best for a reward under a KL penalty of strength beta gives each answer the reward
``beta * log(pi / pi_ref)``, up to a term of the prompt that cancels in a pair. So the Bradley-Terry likelihood of the
preferences is a function of log-probs alone.

Symbols of the paper: ``y_w`` is the chosen answer, ``y_l`` the rejected one, ``log(pi_theta / pi_ref)`` the log-ratio.
Axes: ``n`` pairs.

Source: Rafailov et al. 2023, arXiv:2305.18290, equation 7.
"""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import PreferenceInputs, PreferenceResult
from rlhf_core.lazy import Float, torch


class DpoConfig(Config):
    beta: float = Field(
        0.1,
        gt=0.0,
        le=100.0,
        description="strength of the KL penalty to the reference that the loss stands for: reward per nat of log-ratio",
    )


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
        rejected_log_ratio: the same of the rejected answer.

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
        chosen, rejected = inputs.chosen.log_ratio, inputs.rejected.log_ratio  # (N,) each
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

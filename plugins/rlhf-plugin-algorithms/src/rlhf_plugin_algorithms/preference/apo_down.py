"""APO-down: both answers of a pair become rarer, the rejected one more. For answers that are worse than the model's.

A strong model that is trained to raise weak answers forgets; here it learns from their difference, and leaves both.

Symbols of the paper: ``r_theta`` is ``beta * log(pi / pi_ref)``, ``y_w`` the chosen answer, ``y_l`` the rejected one.
Axes: ``n`` pairs.

Source: D'Oosterlinck et al. 2024, arXiv:2408.06266, equation 8.
"""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import PreferenceInputs, PreferenceResult
from rlhf_core.lazy import Float, torch


class ApoDownConfig(Config):
    beta: float = Field(0.1, gt=0.0, le=100.0, description="reward per nat of log-ratio, as in dpo")


def apo_down_loss(
    chosen_log_ratio: Float[torch.Tensor, " n"],
    rejected_log_ratio: Float[torch.Tensor, " n"],
    *,
    beta: float,
) -> Float[torch.Tensor, " n"]:
    """Return ``sigmoid(beta * r_w) + 1 - sigmoid(beta * (r_w - r_l))`` of each pair, with the log-ratios r, no unit.

    Between 0 and 2. Where policy and reference agree the loss is 1, and its gradient is 0 by the chosen answer's
    log-prob, for the two parts cancel, and beta / 4 by the rejected one's. Once the rejected answer is rarer the first
    part prevails, and the chosen one becomes rarer too. Beta 0 gives 1 everywhere.

    Args:
        chosen_log_ratio: log-prob under the policy minus that under the reference, summed over the answer's tokens.
        rejected_log_ratio: the same of the rejected answer.

    Source: D'Oosterlinck et al. 2024, arXiv:2408.06266, equation 8. TRL's ``apo_down`` is equal; OpenRLHF has none.
    """
    # 1 - sigmoid(x) = sigmoid(-x), which keeps its digits where the loss is small.
    margin = beta * (chosen_log_ratio - rejected_log_ratio)  # (N,)
    return torch.sigmoid(beta * chosen_log_ratio) + torch.sigmoid(-margin)


class ApoDownLoss:
    """Preference loss ``apo_down``."""

    def __init__(self, config: ApoDownConfig) -> None:
        self.config = config

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult:
        beta = self.config.beta
        chosen, rejected = inputs.chosen.log_ratio, inputs.rejected.log_ratio  # (N,) each
        return PreferenceResult(
            loss=apo_down_loss(chosen, rejected, beta=beta),
            chosen_rewards=beta * chosen.detach(),
            rejected_rewards=beta * rejected.detach(),
        )


COMPONENT = Component(
    name="apo_down",
    factory=ApoDownLoss,
    config=ApoDownConfig,
    summary="both answers down, the rejected one more, for answers worse than the model's (APO-down)",
    needs=frozenset({"ref_logprobs"}),
)

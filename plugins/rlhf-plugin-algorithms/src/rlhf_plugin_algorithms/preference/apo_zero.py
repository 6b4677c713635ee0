"""APO-zero: chosen answers become likelier, rejected ones rarer, each by itself. For answers better than the model's.

Where DPO looks at the difference alone, so that a chosen answer may become rarer as long as the rejected one does more,
anchored preference optimization says which way each goes.

Symbols of the paper: ``r_theta`` is ``beta * log(pi / pi_ref)``, ``y_w`` the chosen answer, ``y_l`` the rejected one.
Axes: ``n`` pairs.

Source: D'Oosterlinck et al. 2024, arXiv:2408.06266, equation 7.
"""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import PreferenceInputs, PreferenceResult
from rlhf_core.lazy import Float, torch


class ApoZeroConfig(Config):
    beta: float = Field(0.1, gt=0.0, le=100.0, description="reward per nat of log-ratio, as in dpo")


def apo_zero_loss(
    chosen_log_ratio: Float[torch.Tensor, " n"],
    rejected_log_ratio: Float[torch.Tensor, " n"],
    *,
    beta: float,
) -> Float[torch.Tensor, " n"]:
    """Return ``1 - sigmoid(beta * log_ratio(y_w)) + sigmoid(beta * log_ratio(y_l))`` of each pair, without a unit.

    Between 0 and 2. Where policy and reference agree the loss is 1, and its gradient is -beta / 4 by the chosen
    answer's log-prob and beta / 4 by the rejected one's. Neither depends on the other answer, and both fade as an
    answer leaves the reference, whichever way. Beta 0 gives 1 everywhere.

    Args:
        chosen_log_ratio: log-prob under the policy minus that under the reference, summed over the answer's tokens.
        rejected_log_ratio: the same of the rejected answer.

    Source: D'Oosterlinck et al. 2024, arXiv:2408.06266, equation 7. TRL's ``apo_zero`` is equal; OpenRLHF has none.
    """
    # 1 - sigmoid(x) = sigmoid(-x), which keeps its digits where the loss is small.
    return torch.sigmoid(-beta * chosen_log_ratio) + torch.sigmoid(beta * rejected_log_ratio)


class ApoZeroLoss:
    """Preference loss ``apo_zero``."""

    def __init__(self, config: ApoZeroConfig) -> None:
        self.config = config

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult:
        beta = self.config.beta
        chosen, rejected = inputs.chosen.log_ratio, inputs.rejected.log_ratio  # (N,) each
        return PreferenceResult(
            loss=apo_zero_loss(chosen, rejected, beta=beta),
            chosen_rewards=beta * chosen.detach(),
            rejected_rewards=beta * rejected.detach(),
        )


COMPONENT = Component(
    name="apo_zero",
    factory=ApoZeroLoss,
    config=ApoZeroConfig,
    summary="chosen answers up, rejected ones down, for answers better than the model's (APO-zero)",
    needs=frozenset({"ref_logprobs"}),
)

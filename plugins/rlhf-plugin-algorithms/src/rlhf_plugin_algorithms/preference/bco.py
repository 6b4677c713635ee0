"""BCO: a classifier of single answers, whose logit is the implicit reward: chosen answers above zero, rejected below.

Trained on both answers of a pair. Symbols of the paper: ``r_theta`` is ``beta * log(pi / pi_ref)``, ``y_w`` the chosen
answer, ``y_l`` the rejected one, ``delta`` the reward shift, which is 0 here. Axes: ``n`` pairs.

Source: Jung et al. 2024, arXiv:2404.04656.
"""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import PreferenceInputs, PreferenceResult
from rlhf_core.lazy import Float, torch


class BcoConfig(Config):
    beta: float = Field(0.1, gt=0.0, le=100.0, description="reward per nat of log-ratio, as in dpo")


def bco_loss(
    chosen_log_ratio: Float[torch.Tensor, " n"],
    rejected_log_ratio: Float[torch.Tensor, " n"],
    *,
    beta: float,
) -> Float[torch.Tensor, " n"]:
    """Return ``-log sigmoid(beta * log_ratio(y_w)) - log sigmoid(-beta * log_ratio(y_l))`` of each pair, in nats.

    At least 0, and never below twice DPO's loss of a pair with half its margin. Where policy and reference agree the
    loss is 2 ln 2, and its gradient is -beta / 2 by the chosen answer's log-prob and beta / 2 by the rejected one's.
    Neither depends on the other answer. Beta 0 gives 2 ln 2 everywhere.

    Args:
        chosen_log_ratio: log-prob under the policy minus that under the reference, summed over the answer's tokens.
        rejected_log_ratio: the same of the rejected answer.

    Source: Jung et al. 2024, arXiv:2404.04656, with the reward shift 0. TRL's ``bco_pair`` is equal; OpenRLHF has none.
    """
    right = -torch.nn.functional.logsigmoid(beta * chosen_log_ratio)
    wrong = -torch.nn.functional.logsigmoid(-beta * rejected_log_ratio)
    return right + wrong


class BcoLoss:
    """Preference loss ``bco``."""

    def __init__(self, config: BcoConfig) -> None:
        self.config = config

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult:
        beta = self.config.beta
        chosen, rejected = inputs.chosen.log_ratio, inputs.rejected.log_ratio  # (N,) each
        return PreferenceResult(
            loss=bco_loss(chosen, rejected, beta=beta),
            chosen_rewards=beta * chosen.detach(),
            rejected_rewards=beta * rejected.detach(),
        )


COMPONENT = Component(
    name="bco",
    factory=BcoLoss,
    config=BcoConfig,
    summary="classifier of single answers whose logit is the implicit reward (BCO)",
    needs=frozenset({"ref_logprobs"}),
)

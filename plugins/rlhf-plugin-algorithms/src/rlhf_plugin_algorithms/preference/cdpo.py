"""Conservative DPO: DPO for labels of which a share is wrong. Pairs that are won clearly are not pushed on.

A component of its own beside ``dpo``, not an option of it: whoever names it gets smoothing, and an option that is 0 by
default would let its name stand for plain DPO.

Symbols of the note: ``epsilon`` is ``label_smoothing``, ``y_w`` the chosen answer, ``y_l`` the rejected one.
Axes: ``n`` pairs.

Source: Mitchell 2023, "A note on DPO with noisy preferences and relationship to IPO", equation 3; of DPO, Rafailov et
al. 2023, arXiv:2305.18290.
"""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import PreferenceInputs, PreferenceResult
from rlhf_core.lazy import Float, torch


class CdpoConfig(Config):
    beta: float = Field(0.1, gt=0.0, le=100.0, description="reward per nat of log-ratio, as in dpo")
    label_smoothing: float = Field(
        0.1,
        gt=0.0,
        lt=0.5,
        description="share of pairs whose label is taken to be wrong; 0 would be dpo",
    )


def cdpo_loss(
    chosen_log_ratio: Float[torch.Tensor, " n"],
    rejected_log_ratio: Float[torch.Tensor, " n"],
    *,
    beta: float,
    label_smoothing: float,
) -> Float[torch.Tensor, " n"]:
    """Return ``-(1 - epsilon) * log sigmoid(m) - epsilon * log sigmoid(-m)`` of each pair, in nats, above 0.

    m is DPO's margin, beta times the difference of the log-ratios. The loss is the cross-entropy of a label that is
    right with probability ``1 - epsilon``. It is lowest where ``sigmoid(m) = 1 - epsilon``; pairs beyond are pulled
    back. Where policy and reference agree the loss is ln 2, and its gradient is ``-beta * (1 - 2 * epsilon) / 2`` by
    the chosen answer's log-prob, and the opposite by the rejected one's. Without smoothing it is DPO.

    Args:
        chosen_log_ratio: log-prob under the policy minus that under the reference, summed over the answer's tokens.
        rejected_log_ratio: the same of the rejected answer.

    Source: Mitchell 2023, equation 3. OpenRLHF's ``DPOLoss`` is equal. TRL's DPO trainer takes ``label_smoothing`` into
    its ``robust`` alone; its ``sigmoid`` ignores it.
    """
    margin = beta * (chosen_log_ratio - rejected_log_ratio)  # (N,)
    right = -torch.nn.functional.logsigmoid(margin)
    wrong = -torch.nn.functional.logsigmoid(-margin)
    return (1.0 - label_smoothing) * right + label_smoothing * wrong


class CdpoLoss:
    """Preference loss ``cdpo``."""

    def __init__(self, config: CdpoConfig) -> None:
        self.config = config

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult:
        beta, label_smoothing = self.config.beta, self.config.label_smoothing
        chosen, rejected = inputs.chosen.log_ratio, inputs.rejected.log_ratio  # (N,) each
        return PreferenceResult(
            loss=cdpo_loss(chosen, rejected, beta=beta, label_smoothing=label_smoothing),
            chosen_rewards=beta * chosen.detach(),
            rejected_rewards=beta * rejected.detach(),
        )


COMPONENT = Component(
    name="cdpo",
    factory=CdpoLoss,
    config=CdpoConfig,
    summary="dpo with smoothed labels: pairs that are won clearly are not pushed on (conservative DPO)",
    needs=frozenset({"ref_logprobs"}),
)

"""Robust DPO: DPO for labels of which a known share is flipped, with the loss corrected so that its mean is unbiased.

Where conservative DPO expects a softer label, this one subtracts what wrong labels add. Over the noise its expectation
is DPO's loss with clean labels; a single pair's loss may be negative and has no lower bound.

Symbols of the paper: ``epsilon`` is ``label_smoothing``, ``y_w`` the chosen answer, ``y_l`` the rejected one.
Axes: ``n`` pairs.

Source: Chowdhury et al. 2024, arXiv:2403.00409.
"""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import PreferenceInputs, PreferenceResult
from rlhf_core.lazy import Float, torch


class RobustConfig(Config):
    beta: float = Field(0.1, gt=0.0, le=100.0, description="reward per nat of log-ratio, as in dpo")
    label_smoothing: float = Field(
        0.1,
        gt=0.0,
        le=0.49,
        description="share of pairs whose label is flipped; 0 would be dpo, and 0.5 leaves nothing to learn from",
    )


def robust_loss(
    chosen_log_ratio: Float[torch.Tensor, " n"],
    rejected_log_ratio: Float[torch.Tensor, " n"],
    *,
    beta: float,
    label_smoothing: float,
) -> Float[torch.Tensor, " n"]:
    """Return ``((1 - epsilon) * l(m) - epsilon * l(-m)) / (1 - 2 * epsilon)`` of each pair, in nats, of any sign.

    l(m) is ``-log sigmoid(m)`` and m is DPO's margin, beta times the difference of the log-ratios. With labels flipped
    by the probability epsilon, the expectation is DPO's loss of the clean label. Where policy and reference agree the
    loss is ln 2, and its gradient is ``-beta / 2 / (1 - 2 * epsilon)`` by the chosen answer's log-prob, and the
    opposite by the rejected one's. As the chosen answer wins, it goes to ``-beta * epsilon / (1 - 2 * epsilon)``, not
    to 0. Without smoothing it is DPO.

    Args:
        chosen_log_ratio: log-prob under the policy minus that under the reference, summed over the answer's tokens.
        rejected_log_ratio: the same of the rejected answer.

    Source: Chowdhury et al. 2024, arXiv:2403.00409. TRL's ``robust`` is equal; OpenRLHF has none.
    """
    margin = beta * (chosen_log_ratio - rejected_log_ratio)  # (N,)
    right = -torch.nn.functional.logsigmoid(margin)
    flipped = -torch.nn.functional.logsigmoid(-margin)
    return ((1.0 - label_smoothing) * right - label_smoothing * flipped) / (
        1.0 - 2.0 * label_smoothing
    )


class RobustLoss:
    """Preference loss ``robust``."""

    def __init__(self, config: RobustConfig) -> None:
        self.config = config

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult:
        beta, label_smoothing = self.config.beta, self.config.label_smoothing
        chosen, rejected = inputs.chosen.log_ratio, inputs.rejected.log_ratio  # (N,) each
        return PreferenceResult(
            loss=robust_loss(chosen, rejected, beta=beta, label_smoothing=label_smoothing),
            chosen_rewards=beta * chosen.detach(),
            rejected_rewards=beta * rejected.detach(),
        )


COMPONENT = Component(
    name="robust",
    factory=RobustLoss,
    config=RobustConfig,
    summary="dpo whose mean is unbiased when a known share of labels is flipped (robust DPO)",
    needs=frozenset({"ref_logprobs"}),
)

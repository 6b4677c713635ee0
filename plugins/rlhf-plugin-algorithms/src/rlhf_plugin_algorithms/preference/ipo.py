"""IPO: the difference of the log-ratios is drawn to a fixed distance, so that certain preferences do not push forever.

Symbols of the paper: ``tau`` is ``beta``, ``y_w`` the chosen answer, ``y_l`` the rejected one, ``h`` the difference of
their log-ratios ``log(pi / pi_ref)``. Axes: ``n`` pairs.

Source: Azar et al. 2023, arXiv:2310.12036, equation 17.
"""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import PreferenceInputs, PreferenceResult
from rlhf_core.lazy import Float, torch


class IpoConfig(Config):
    beta: float = Field(
        0.1,
        ge=1e-3,
        le=100.0,
        description="the log-ratios of a pair are drawn to a distance of 1 / (2 beta): tau of the paper",
    )
    length_normalized: bool = Field(
        False,
        description="take the log-ratio per token, as TRL, instead of the sum over the answer's tokens",
    )


def ipo_loss(
    chosen_log_ratio: Float[torch.Tensor, " n"],
    rejected_log_ratio: Float[torch.Tensor, " n"],
    *,
    beta: float,
) -> Float[torch.Tensor, " n"]:
    """Return ``(h - 1 / (2 * beta))^2`` of each pair, ``h = log(pi / pi_ref)(y_w) - log(pi / pi_ref)(y_l)``.

    In nats squared, at least 0, which it is at ``h = 1 / (2 * beta)``; a pair beyond is drawn back. Where policy and
    reference agree the loss is ``1 / (4 * beta^2)``, and its gradient is -1 / beta by the chosen answer's log-ratio and
    1 / beta by the rejected one's: a smaller beta pulls harder, and further.

    Args:
        chosen_log_ratio: log-prob under the policy minus that under the reference, of the answer or per token of it.
        rejected_log_ratio: the same of the rejected answer.

    Source: Azar et al. 2023, arXiv:2310.12036, equation 17. OpenRLHF's ``DPOLoss`` with ``ipo`` is equal, on sums over
    tokens as the paper has them. TRL's ``ipo`` takes means over tokens: ``length_normalized``.
    """
    distance = chosen_log_ratio - rejected_log_ratio  # (N,) h
    return (distance - 1.0 / (2.0 * beta)).square()


class IpoLoss:
    """Preference loss ``ipo``."""

    def __init__(self, config: IpoConfig) -> None:
        self.config = config

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult:
        beta = self.config.beta
        chosen, rejected = inputs.chosen.log_ratio, inputs.rejected.log_ratio  # (N,) each
        if self.config.length_normalized:
            chosen = chosen / inputs.chosen.num_tokens
            rejected = rejected / inputs.rejected.num_tokens
        return PreferenceResult(
            loss=ipo_loss(chosen, rejected, beta=beta),
            chosen_rewards=beta * chosen.detach(),
            rejected_rewards=beta * rejected.detach(),
        )


COMPONENT = Component(
    name="ipo",
    factory=IpoLoss,
    config=IpoConfig,
    summary="squared distance of the log-ratios' difference from 1 / (2 beta) (IPO)",
    needs=frozenset({"ref_logprobs"}),
)

"""AOT: the distribution of the policy's margins is to lie above that of the reference's, rank by rank.

DPO asks of each pair that the policy prefers its chosen answer more than the reference does. Here the pairs of an
update are a sample of two distributions, of margins under the policy and under the reference, and the smallest is
compared with the smallest, up to the largest with the largest: first-order stochastic dominance, relaxed by a convex
loss, of which the sorted match is the optimal transport.

Symbols of the paper: ``u`` is the margin ``log pi(y_w) - log pi(y_l)`` under the policy, ``v`` that under the
reference. Axes: ``n`` pairs.

Source: Melnyk et al. 2024, arXiv:2406.05882, algorithm 1 for paired data, with the logistic loss.
"""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import PreferenceInputs, PreferenceResult
from rlhf_core.lazy import Float, torch


class AotConfig(Config):
    beta: float = Field(
        0.1,
        gt=0.0,
        le=100.0,
        description="steepness of the loss in the difference of matched margins",
    )
    label_smoothing: float = Field(
        0.0,
        ge=0.0,
        lt=0.5,
        description="share of matches that are taken to be the other way around",
    )


def aot_loss(
    margin: Float[torch.Tensor, " n"],
    reference_margin: Float[torch.Tensor, " n"],
    *,
    beta: float,
    label_smoothing: float = 0.0,
) -> Float[torch.Tensor, " n"]:
    """Return ``-(1 - eps) log sigmoid(beta * (u - v)) - eps log sigmoid(-beta * (u - v))`` of each pair, in nats.

    Without smoothing at least 0. Where policy and reference agree the loss is ln 2, with the gradient ``-beta / 2`` by
    the chosen answer's log-prob and ``beta / 2`` by the rejected one's, as DPO's. It is DPO's wherever both rank the
    pairs alike, as of a single pair.

    Args:
        margin: u, log-prob of the chosen answer minus that of the rejected one, under the policy.
        reference_margin: v, the margin under the reference that has the same rank among all pairs of the update.
        label_smoothing: eps.

    Source: Melnyk et al. 2024, arXiv:2406.05882, algorithm 1. TRL's ``aot`` is equal, but for matching within a
    micro-batch; OpenRLHF has none.
    """
    difference = beta * (margin - reference_margin)  # (N,)
    right = -torch.nn.functional.logsigmoid(difference)
    wrong = -torch.nn.functional.logsigmoid(-difference)
    return (1.0 - label_smoothing) * right + label_smoothing * wrong


class AotLoss:
    """Preference loss ``aot``."""

    def __init__(self, config: AotConfig) -> None:
        self.config = config

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult:
        assert inputs.matched is not None
        beta = self.config.beta
        return PreferenceResult(
            loss=aot_loss(
                inputs.chosen.policy - inputs.rejected.policy,
                inputs.matched.reference_margin.detach(),
                beta=beta,
                label_smoothing=self.config.label_smoothing,
            ),
            chosen_rewards=beta * inputs.chosen.log_ratio.detach(),
            rejected_rewards=beta * inputs.rejected.log_ratio.detach(),
        )


COMPONENT = Component(
    name="aot",
    factory=AotLoss,
    config=AotConfig,
    summary="margins of an update matched by rank with the reference's (AOT, paired)",
    needs=frozenset({"ref_logprobs", "matched_pairs"}),
)

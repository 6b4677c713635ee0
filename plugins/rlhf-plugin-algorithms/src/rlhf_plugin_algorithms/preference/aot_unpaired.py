"""AOT of single answers: the rewards of chosen answers are to lie above those of rejected ones, rank by rank.

Which chosen answer stands beside which rejected one in the data plays no part: the smallest log-ratio of the chosen
answers of an update is compared with the smallest of the rejected ones, up to the largest with the largest.

Symbols of the paper: ``u`` is the log-ratio ``log(pi / pi_ref)`` of a chosen answer, ``v`` that of a rejected one.
Axes: ``n`` pairs.

Source: Melnyk et al. 2024, arXiv:2406.05882, algorithm 1 for unpaired data, with the logistic loss.
"""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import PreferenceInputs, PreferenceResult
from rlhf_core.lazy import Float, torch


class AotUnpairedConfig(Config):
    beta: float = Field(0.1, gt=0.0, le=100.0, description="reward per nat of log-ratio, as in dpo")
    label_smoothing: float = Field(
        0.0,
        ge=0.0,
        lt=0.5,
        description="share of matches that are taken to be the other way around",
    )


def match_loss(
    chosen_log_ratio: Float[torch.Tensor, " n"],
    rejected_log_ratio: Float[torch.Tensor, " n"],
    *,
    beta: float,
    label_smoothing: float = 0.0,
) -> Float[torch.Tensor, " n"]:
    """Return ``-(1 - eps) log sigmoid(beta * (u - v)) - eps log sigmoid(-beta * (u - v))`` of each match, in nats.

    Without smoothing at least 0; ln 2 where u is v.

    Args:
        chosen_log_ratio: u, log-prob under the policy minus that under the reference, summed over the answer.
        rejected_log_ratio: v, the same of the rejected answer that has the same rank.
        label_smoothing: eps.

    Source: Melnyk et al. 2024, arXiv:2406.05882, algorithm 1. TRL's ``aot_unpaired`` is equal, but for matching within
    a micro-batch; OpenRLHF has none.
    """
    difference = beta * (chosen_log_ratio - rejected_log_ratio)  # (N,)
    right = -torch.nn.functional.logsigmoid(difference)
    wrong = -torch.nn.functional.logsigmoid(-difference)
    return (1.0 - label_smoothing) * right + label_smoothing * wrong


class AotUnpairedLoss:
    """Preference loss ``aot_unpaired``.

    The two answers of a pair are in two matches, each beside an answer of another pair, whose micro-batch may be
    another. The loss of the pair is half the loss of each of the two, so that all pairs together have that of all
    matches. Its gradient is the whole one, to the pair's own answers: their partners' part is in the partners' pairs.
    """

    def __init__(self, config: AotUnpairedConfig) -> None:
        self.config = config

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult:
        assert inputs.matched is not None
        config, matched = self.config, inputs.matched
        options = {"beta": config.beta, "label_smoothing": config.label_smoothing}
        chosen, rejected = inputs.chosen.log_ratio, inputs.rejected.log_ratio  # (N,) each
        both = match_loss(chosen, matched.rejected_log_ratio.detach(), **options) + match_loss(
            matched.chosen_log_ratio.detach(), rejected, **options
        )
        return PreferenceResult(
            loss=both - both.detach() / 2,
            chosen_rewards=config.beta * chosen.detach(),
            rejected_rewards=config.beta * rejected.detach(),
        )


COMPONENT = Component(
    name="aot_unpaired",
    factory=AotUnpairedLoss,
    config=AotUnpairedConfig,
    summary="log-ratios of chosen and rejected answers of an update matched by rank (AOT, unpaired)",
    needs=frozenset({"ref_logprobs", "matched_pairs"}),
)

"""ORPO: supervised fine-tuning on the chosen answers, with a penalty on the odds of the rejected ones. No reference.

An answer's probability is the geometric mean of its tokens' probabilities. Odds, unlike probabilities, keep a pair
apart gently where both are unlikely.

Symbols of the paper: ``P_theta(y|x)`` is ``exp`` of the mean log-prob, ``lambda`` is ``lambda_``, ``y_w`` the chosen
answer, ``y_l`` the rejected one. We differ from it in one thing: within 1e-6 of certainty the log-odds go on with slope
1, which keeps them finite. Axes: ``n`` pairs.

Source: Hong et al. 2024, arXiv:2403.07691, equations 4 to 7.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Metric, PreferenceInputs, PreferenceResult
from rlhf_core.lazy import Float, torch

MAX_LOGPROB = -1e-6
"""Mean log-prob from which on log-odds have slope 1: about the rounding of a float32 log-prob."""
LOG_HALF = math.log(0.5)


class OrpoConfig(Config):
    lambda_: float = Field(
        0.1,
        gt=0.0,
        le=100.0,
        description="weight of the odds ratio beside the supervised loss; TRL calls it beta",
    )


class OrpoTerms(NamedTuple):
    """The parts of the loss of each pair, in nats, and the log of the odds ratio. All have a gradient."""

    nll: Float[torch.Tensor, " n"]
    """Mean negative log-likelihood of the chosen answer's tokens, L_SFT."""
    ratio_loss: Float[torch.Tensor, " n"]
    """``-log sigmoid(log_odds_ratio)``, L_OR."""
    log_odds_ratio: Float[torch.Tensor, " n"]


def log_odds(mean_logprob: Float[torch.Tensor, " n"]) -> Float[torch.Tensor, " n"]:
    """Return ``log(P / (1 - P))`` of answers with ``P = exp(mean_logprob)``, in nats; 0 for P = 1/2.

    The slope is ``1 / (1 - P)``, up to 1e6. From a mean log-prob of -1e-6 on, where P is 1 up to rounding, it is 1.
    """
    bounded = mean_logprob.clamp(max=MAX_LOGPROB)
    # log(1 - P) in the form that keeps its digits: P is small in the first, near 1 in the second.
    complement = torch.where(
        bounded < LOG_HALF, torch.log1p(-bounded.exp()), torch.log(-torch.expm1(bounded))
    )
    return mean_logprob - complement


def orpo_terms(
    chosen_mean_logprob: Float[torch.Tensor, " n"], rejected_mean_logprob: Float[torch.Tensor, " n"]
) -> OrpoTerms:
    """Return the two parts of ``L = L_SFT + lambda * L_OR`` for each pair; both are at least 0.

    ``L_OR = -log sigmoid(log odds(y_w) - log odds(y_l))``; for answers of equal probability P it is ln 2, and its
    gradient ``-1 / (2 * (1 - P))`` by the mean log-prob of the chosen answer, and the opposite by the rejected one's.

    Args:
        chosen_mean_logprob: log-prob of the chosen answer under the policy, per token.
        rejected_mean_logprob: the same of the rejected answer.

    Source: Hong et al. 2024, arXiv:2403.07691, equations 4 to 7. TRL's L_OR is equal, in float32 and without a bound at
    P = 1; its L_SFT also counts the prompt's tokens, and is a mean over all tokens of a micro-batch. OpenRLHF has none.
    """
    ratio = log_odds(chosen_mean_logprob) - log_odds(rejected_mean_logprob)  # (N,)
    return OrpoTerms(
        nll=-chosen_mean_logprob,
        ratio_loss=-torch.nn.functional.logsigmoid(ratio),
        log_odds_ratio=ratio,
    )


class OrpoLoss:
    """Preference loss ``orpo``."""

    def __init__(self, config: OrpoConfig) -> None:
        self.config = config

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult:
        lambda_ = self.config.lambda_
        chosen = inputs.chosen.policy / inputs.chosen.num_tokens  # (N,)
        rejected = inputs.rejected.policy / inputs.rejected.num_tokens  # (N,)
        terms = orpo_terms(chosen, rejected)
        num_pairs = len(chosen)
        return PreferenceResult(
            loss=terms.nll + lambda_ * terms.ratio_loss,
            chosen_rewards=lambda_ * chosen.detach(),
            rejected_rewards=lambda_ * rejected.detach(),
            metrics={
                "orpo/nll": Metric(terms.nll.detach().sum(), num_pairs),
                "orpo/log_odds_ratio": Metric(terms.log_odds_ratio.detach().sum(), num_pairs),
            },
        )


COMPONENT = Component(
    name="orpo",
    factory=OrpoLoss,
    config=OrpoConfig,
    summary="supervised loss of the chosen answer plus a penalty on the odds of the rejected one (ORPO)",
)

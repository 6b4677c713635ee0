"""SimPO: the reward is the mean log-prob of an answer's tokens, as generation ranks them, with a margin. No reference.

Symbols of the paper: ``|y|`` is the number of tokens, ``gamma`` the target margin, ``y_w`` the chosen answer, ``y_l``
the rejected one. Axes: ``n`` pairs.

Source: Meng et al. 2024, arXiv:2405.14734, equation 6.
"""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import PreferenceInputs, PreferenceResult
from rlhf_core.lazy import Float, torch


class SimpoConfig(Config):
    beta: float = Field(
        2.0, gt=0.0, le=100.0, description="reward per nat of mean log-prob; the paper has 2 to 2.5"
    )
    gamma: float = Field(
        1.0,
        ge=0.0,
        le=100.0,
        description="difference of the rewards that the loss asks for; the paper has 0.3 to 1.6",
    )


def simpo_loss(
    chosen_mean_logprob: Float[torch.Tensor, " n"],
    rejected_mean_logprob: Float[torch.Tensor, " n"],
    *,
    beta: float,
    gamma: float,
) -> Float[torch.Tensor, " n"]:
    """Return ``-log sigmoid(beta * (log pi(y_w) / |y_w| - log pi(y_l) / |y_l|) - gamma)`` of each pair, in nats.

    At least 0. For answers of equal mean log-prob the loss is ``log(1 + exp(gamma))``, and its gradient
    ``-beta * sigmoid(gamma)`` by the mean log-prob of the chosen answer, and the opposite by the rejected one's. By the
    log-prob of a whole answer it is that over the number of its tokens.

    Args:
        chosen_mean_logprob: log-prob of the chosen answer under the policy, per token.
        rejected_mean_logprob: the same of the rejected answer.

    Source: Meng et al. 2024, arXiv:2405.14734, equation 6. TRL's ``CPOTrainer`` with ``simpo`` is equal, with
    ``cpo_alpha`` 0; its defaults are beta 0.1 and gamma 0.5. OpenRLHF has none.
    """
    difference = beta * (chosen_mean_logprob - rejected_mean_logprob)  # (N,)
    return -torch.nn.functional.logsigmoid(difference - gamma)


class SimpoLoss:
    """Preference loss ``simpo``."""

    def __init__(self, config: SimpoConfig) -> None:
        self.config = config

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult:
        beta, gamma = self.config.beta, self.config.gamma
        chosen = inputs.chosen.policy / inputs.chosen.num_tokens  # (N,)
        rejected = inputs.rejected.policy / inputs.rejected.num_tokens  # (N,)
        return PreferenceResult(
            loss=simpo_loss(chosen, rejected, beta=beta, gamma=gamma),
            chosen_rewards=beta * chosen.detach(),
            rejected_rewards=beta * rejected.detach(),
        )


COMPONENT = Component(
    name="simpo",
    factory=SimpoLoss,
    config=SimpoConfig,
    summary="logistic loss on the difference of mean log-probs, with a margin and no reference (SimPO)",
)

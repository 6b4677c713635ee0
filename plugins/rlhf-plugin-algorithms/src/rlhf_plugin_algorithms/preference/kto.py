"""KTO: answers that are good or bad by themselves, not in pairs. Each is worth what it gains over a reference point.

Symbols of the paper: ``r_theta`` is the log-ratio ``log(pi / pi_ref)``, ``z_0`` the reference point, ``lambda_D`` and
``lambda_U`` are ``desirable_weight`` and ``undesirable_weight``. Desirable answers are the chosen ones. The reference
point is the mean KL to the reference, estimated with answers beside the prompts of others; the paper takes the mean
over a micro-batch, we over the optimizer update. Axes: ``n`` answers, ``c`` chosen, ``r`` rejected.

Source: Ethayarajh et al. 2024, arXiv:2402.01306, section 4.
"""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import Metric, PreferenceInputs, PreferenceResult
from rlhf_core.lazy import Float, torch


class KtoConfig(Config):
    beta: float = Field(0.1, gt=0.0, le=100.0, description="reward per nat of log-ratio, as in dpo")
    desirable_weight: float = Field(
        1.0,
        gt=0.0,
        le=100.0,
        description="factor of the losses of chosen answers; set it so that the weights of all chosen answers sum to "
        "1 to 4/3 times those of all rejected ones",
    )
    undesirable_weight: float = Field(
        1.0, gt=0.0, le=100.0, description="factor of the losses of rejected answers"
    )


def kto_loss(
    gain: Float[torch.Tensor, " n"], *, beta: float, weight: float
) -> Float[torch.Tensor, " n"]:
    """Return ``weight * (1 - sigmoid(beta * gain))`` of each answer, between 0 and ``weight``, without a unit.

    In the paper's words lambda minus the value of the answer. Where the gain is 0, as for all answers where policy and
    reference agree, the loss is ``weight / 2``, and its gradient by the answer's log-prob ``-weight * beta / 4`` for a
    desirable answer, and the opposite for an undesirable one. The gradient fades on both sides: answers far from the
    reference point are left alone. Beta 0 gives ``weight / 2`` everywhere.

    Args:
        gain: log-ratio minus the reference point for a desirable answer, the reference point minus the log-ratio for an
            undesirable one, in nats.
        weight: lambda_D or lambda_U.

    Source: Ethayarajh et al. 2024, arXiv:2402.01306, section 4. TRL's ``kto`` is equal, and so was OpenRLHF's
    ``KTOLoss``, which is no longer a part of it.
    """
    # 1 - sigmoid(x) = sigmoid(-x), which keeps its digits where the loss is small.
    return weight * torch.sigmoid(-beta * gain)


class KtoLoss:
    """Preference loss ``kto``."""

    def __init__(self, config: KtoConfig) -> None:
        self.config = config

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult:
        assert inputs.mismatched_kl is not None
        config = self.config
        # A KL is not negative, its estimate may be.
        reference_point = inputs.mismatched_kl.detach().clamp(min=0.0)  # () z_0
        chosen, rejected = inputs.chosen.log_ratio, inputs.rejected.log_ratio  # (C,) and (R,)
        desirable = kto_loss(
            chosen - reference_point, beta=config.beta, weight=config.desirable_weight
        )
        undesirable = kto_loss(
            reference_point - rejected, beta=config.beta, weight=config.undesirable_weight
        )
        num_answers = len(chosen) + len(rejected)
        return PreferenceResult(
            loss=torch.cat([desirable, undesirable]),
            chosen_rewards=config.beta * chosen.detach(),
            rejected_rewards=config.beta * rejected.detach(),
            metrics={"kto/reference_point": Metric(reference_point * num_answers, num_answers)},
        )


COMPONENT = Component(
    name="kto",
    factory=KtoLoss,
    config=KtoConfig,
    summary="gain of single answers over the mean KL to the reference, without pairs (KTO)",
    needs=frozenset({"ref_logprobs", "mismatched_kl"}),
    provides=frozenset({"unpaired_answers"}),
)

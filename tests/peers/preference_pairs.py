"""Preference losses: the mean over pairs, or over answers; the gradient is that of the whole update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from rlhf_core.contracts import TrajectoryColumns, Uid
from rlhf_core.objective import PreferenceSum, WeightedPreferenceLoss
from rlhf_plugin_algorithms.preference.aot import AotConfig, AotLoss
from rlhf_plugin_algorithms.preference.aot_unpaired import AotUnpairedConfig, AotUnpairedLoss
from rlhf_plugin_algorithms.preference.apo_down import ApoDownConfig, ApoDownLoss
from rlhf_plugin_algorithms.preference.apo_zero import ApoZeroConfig, ApoZeroLoss
from rlhf_plugin_algorithms.preference.bco import BcoConfig, BcoLoss
from rlhf_plugin_algorithms.preference.cdpo import CdpoConfig, CdpoLoss
from rlhf_plugin_algorithms.preference.dpo import DpoConfig, DpoLoss
from rlhf_plugin_algorithms.preference.hinge import HingeConfig, HingeLoss
from rlhf_plugin_algorithms.preference.ipo import IpoConfig, IpoLoss
from rlhf_plugin_algorithms.preference.kto import KtoConfig, KtoLoss
from rlhf_plugin_algorithms.preference.orpo import orpo_terms
from rlhf_plugin_algorithms.preference.robust import RobustConfig, RobustLoss
from rlhf_plugin_algorithms.preference.simpo import SimpoConfig, SimpoLoss
from rlhf_plugin_supervised.training.preferences.answers import length_weights, pair_weights
from rlhf_testing.conformance.columns import trajectory

from .batches import Batch
from .pairs import Both, pair
from .policy_loss_pairs import TO_POLICY
from .preference_stand_ins import (
    kto_inputs,
    pairs_of,
    trl_dpo_loss,
    trl_kto_loss,
    trl_odds_ratio_losses,
    trl_simpo_losses,
)
from .released import load

OPENRLHF = "models.loss.DPOLoss"
DPO_TRAINER = "trainer.dpo_trainer.DPOTrainer._compute_loss"
KTO_TRAINER = "trainer.kto_trainer.KTOTrainer._compute_loss"
CPO_TRAINER = "experimental.cpo.cpo_trainer.CPOTrainer.cpo_loss"
ORPO_TRAINER = "experimental.orpo.orpo_trainer.ORPOTrainer.odds_ratio_loss"
BETA = 0.3
NOISE = {"beta": BETA, "label_smoothing": 0.2}


def _openrlhf(name: str, loss: Any, **options: Any) -> None:
    @pair("openrlhf", OPENRLHF, f"preference.{name}", case="loss and rewards", gradient=TO_POLICY)
    def compare(batch: Batch) -> Both:
        inputs = pairs_of(batch)
        chosen, rejected = inputs.chosen, inputs.rejected
        theirs = load("openrlhf.models.loss").DPOLoss(**options)(
            chosen.policy, rejected.policy, chosen.reference, rejected.reference
        )
        ours = loss(inputs)
        return Both(
            ours=torch.hstack([ours.loss.mean(), ours.chosen_rewards, ours.rejected_rewards]),
            theirs=torch.hstack(theirs),
        )


_openrlhf("dpo.DpoLoss", DpoLoss(DpoConfig(beta=BETA)), beta=BETA)
_openrlhf("cdpo.CdpoLoss", CdpoLoss(CdpoConfig(**NOISE)), **NOISE)
_openrlhf("ipo.IpoLoss", IpoLoss(IpoConfig(beta=BETA)), beta=BETA, ipo=True)


def _trl_dpo(name: str, loss: Any, loss_type: str, case: str = "", **options: Any) -> None:
    @pair("trl", DPO_TRAINER, f"preference.{name}", case=case or loss_type, gradient=TO_POLICY)
    def compare(batch: Batch) -> Both:
        theirs = trl_dpo_loss(batch, loss_type, **options)
        return Both(ours=loss(pairs_of(batch)).loss.mean(), theirs=theirs)


_trl_dpo("dpo.DpoLoss", DpoLoss(DpoConfig(beta=BETA)), "sigmoid", beta=BETA)
for _name in ("forward_kl", "js_divergence"):
    _trl_dpo(
        "dpo.DpoLoss",
        DpoLoss(DpoConfig(beta=BETA, f_divergence=_name)),
        "sigmoid",
        case=_name,
        beta=BETA,
        f_divergence=_name,
    )


@pair(
    "trl",
    DPO_TRAINER,
    "preference.dpo.DpoLoss",
    case="alpha_divergence",
    gradient=TO_POLICY,
    float32="it takes no float64",
)
def trl_alpha_divergence(batch: Batch) -> Both:
    config = DpoConfig(beta=BETA, f_divergence="alpha_divergence", alpha=0.2)
    single = replace(
        batch,
        policy_logprobs=batch.policy_logprobs.float(),
        ref_logprobs=batch.ref_logprobs.float(),
    )
    theirs = trl_dpo_loss(
        single, "sigmoid", beta=BETA, f_divergence="alpha_divergence", f_alpha=0.8
    )
    return Both(ours=DpoLoss(config)(pairs_of(single)).loss.mean(), theirs=theirs)


def neighbors(lengths: list[int]) -> TrajectoryColumns:
    """Return answers of these lengths."""
    return TrajectoryColumns.from_trajectories(
        [trajectory(Uid(0, row), (length,)) for row, length in enumerate(lengths)]
    )


def _trl_ld_dpo(loss: Any, loss_type: str, alpha: float) -> None:
    case = f"{loss_type}, ld_alpha {alpha}"

    @pair(
        "trl",
        DPO_TRAINER,
        "training.preferences.answers.length_weights",
        case=case,
        gradient=TO_POLICY,
    )
    def compare(batch: Batch) -> Both:
        # Its tail goes on through the padding, where nothing is compared.
        inside = torch.where(batch.mask, batch.policy_logprobs, 0.0)
        batch = replace(batch, policy_logprobs=inside)
        half = len(batch.mask) // 2
        lengths = batch.lengths[: 2 * half]
        rows = neighbors(lengths.view(2, half).T.flatten().tolist())
        flat = torch.from_numpy(length_weights(rows, alpha)).double()
        weights = torch.zeros_like(batch.values.detach())
        ends = rows.action_offsets
        for place in range(2 * half):  # theirs are in halves
            row = place // 2 + (place % 2) * half
            weights[row, : lengths[row]] = flat[ends[place] : ends[place + 1]]
        weighted = replace(
            batch,
            policy_logprobs=batch.policy_logprobs * weights,
            ref_logprobs=batch.ref_logprobs * weights,
        )
        theirs = trl_dpo_loss(batch, loss_type, beta=BETA, ld_alpha=alpha)
        return Both(ours=loss(pairs_of(weighted)).loss.mean(), theirs=theirs)


@pair("trl", DPO_TRAINER, "training.preferences.answers.pair_weights", gradient=TO_POLICY)
def trl_wpo(batch: Batch) -> Both:
    half = len(batch.mask) // 2
    order = torch.arange(2 * half).view(2, half).T.flatten()  # theirs are in halves
    rows = neighbors(batch.lengths[order].tolist())

    def flat(column: torch.Tensor) -> Any:
        return (
            torch.cat([column[row, : batch.lengths[row]] for row in order.tolist()])
            .detach()
            .numpy()
        )

    weights = pair_weights(rows, flat(batch.policy_logprobs), flat(batch.sum_pi_squared))
    of_pairs = torch.from_numpy(weights)[torch.from_numpy(rows.action_offsets[:-1][0::2])].double()
    losses = DpoLoss(DpoConfig(beta=BETA))(pairs_of(batch)).loss * of_pairs
    theirs = trl_dpo_loss(batch, "sigmoid", beta=BETA, use_weighting=True)
    return Both(ours=losses.mean(), theirs=theirs)


for _alpha in (0.0, 0.4):
    _trl_ld_dpo(DpoLoss(DpoConfig(beta=BETA)), "sigmoid", _alpha)
_ipo = IpoLoss(IpoConfig(beta=BETA, length_normalized=True))
_trl_ld_dpo(_ipo, "ipo", 0.4)
_trl_ld_dpo(AotLoss(AotConfig(beta=BETA)), "aot", 0.4)


_trl_dpo("apo_zero.ApoZeroLoss", ApoZeroLoss(ApoZeroConfig(beta=BETA)), "apo_zero", beta=BETA)
_trl_dpo("apo_down.ApoDownLoss", ApoDownLoss(ApoDownConfig(beta=BETA)), "apo_down", beta=BETA)
_trl_dpo("bco.BcoLoss", BcoLoss(BcoConfig(beta=BETA)), "bco_pair", beta=BETA)
_trl_dpo("hinge.HingeLoss", HingeLoss(HingeConfig(beta=BETA)), "hinge", beta=BETA)
_trl_dpo("robust.RobustLoss", RobustLoss(RobustConfig(**NOISE)), "robust", **NOISE)
_trl_dpo("ipo.IpoLoss", IpoLoss(IpoConfig(beta=BETA, length_normalized=True)), "ipo", beta=BETA)


for _name, _loss in (
    ("aot.AotLoss", AotLoss(AotConfig(**NOISE))),
    ("aot_unpaired.AotUnpairedLoss", AotUnpairedLoss(AotUnpairedConfig(**NOISE))),
):
    _trl_dpo(_name, _loss, _name.partition(".")[0], **NOISE)


@pair("trl", DPO_TRAINER, "core.objective.PreferenceSum", case="several losses", gradient=TO_POLICY)
def trl_several_losses(batch: Batch) -> Both:
    weights = (0.8, 0.2, 0.5)
    losses = (DpoLoss(DpoConfig(beta=BETA)), BcoLoss(BcoConfig(beta=BETA)))
    losses = (*losses, ApoZeroLoss(ApoZeroConfig(beta=BETA)))
    parts = [
        WeightedPreferenceLoss(name=type(loss).__name__, loss=loss, weight=weight)
        for loss, weight in zip(losses, weights, strict=True)
    ]
    theirs = trl_dpo_loss(batch, "sigmoid", "bco_pair", "apo_zero", beta=BETA, weights=weights)
    return Both(ours=PreferenceSum(parts)(pairs_of(batch)).loss.mean(), theirs=theirs)


@pair("trl", KTO_TRAINER, "preference.kto.KtoLoss", gradient=TO_POLICY)
def trl_kto(batch: Batch) -> Both:
    config = KtoConfig(beta=BETA, desirable_weight=1.5, undesirable_weight=0.7)
    ours = KtoLoss(config)(kto_inputs(batch)).loss.mean()
    return Both(ours=ours, theirs=trl_kto_loss(batch, beta=BETA, desirable=1.5, undesirable=0.7))


@pair("trl", CPO_TRAINER, "preference.simpo.SimpoLoss", case="simpo", gradient=TO_POLICY)
def trl_simpo(batch: Batch) -> Both:
    inputs = pairs_of(batch)
    ours = SimpoLoss(SimpoConfig(beta=2.5, gamma=0.6))(inputs).loss
    means = (each.policy / each.num_tokens for each in (inputs.chosen, inputs.rejected))
    return Both(ours=ours, theirs=trl_simpo_losses(*means, beta=2.5, gamma=0.6))


@pair(
    "trl",
    ORPO_TRAINER,
    "preference.orpo.orpo_terms",
    case="the odds ratio",
    gradient=TO_POLICY,
    float32="it casts its inputs to float32",
)
def trl_odds_ratio(batch: Batch) -> Both:
    inputs = pairs_of(batch)
    means = [each.policy / each.num_tokens for each in (inputs.chosen, inputs.rejected)]
    theirs = trl_odds_ratio_losses(*means, weight=BETA)
    return Both(ours=BETA * orpo_terms(*means).ratio_loss, theirs=theirs.double())

"""Intended differences in preference losses."""

from __future__ import annotations

import torch

from rlhf_plugin_algorithms.preference.cdpo import cdpo_loss
from rlhf_plugin_algorithms.preference.ipo import IpoConfig, IpoLoss
from rlhf_plugin_algorithms.preference.orpo import orpo_terms

from .batches import ragged
from .differences import difference
from .pairs import FLOAT32, Both
from .preference_pairs import DPO_TRAINER, ORPO_TRAINER
from .preference_stand_ins import pairs_of, trl_dpo_loss, trl_odds_ratio_losses


@difference(
    "trl",
    DPO_TRAINER,
    "preference.ipo.IpoLoss",
    what="By default log-ratios are sums over an answer's tokens (as OpenRLHF); theirs are means.",
    why="The paper has probabilities of answers. They agree with length_normalized.",
)
def ipo_of_sums(agreeing: bool) -> Both:
    batch = ragged(0)
    ours = IpoLoss(IpoConfig(beta=0.3, length_normalized=agreeing))(pairs_of(batch)).loss.mean()
    return Both(ours=ours, theirs=trl_dpo_loss(batch, "ipo", beta=0.3))


@difference(
    "trl",
    DPO_TRAINER,
    "preference.cdpo.cdpo_loss",
    what="Labels are smoothed (as OpenRLHF); theirs ignores label_smoothing with sigmoid.",
    why="An option that is given has an effect. They agree without smoothing.",
)
def smoothed_labels(agreeing: bool) -> Both:
    batch, smoothing = ragged(0), 0.0 if agreeing else 0.2
    inputs = pairs_of(batch)
    ours = cdpo_loss(
        inputs.chosen.log_ratio, inputs.rejected.log_ratio, beta=0.3, label_smoothing=smoothing
    )
    theirs = trl_dpo_loss(batch, "sigmoid", beta=0.3, label_smoothing=smoothing)
    return Both(ours=ours.mean(), theirs=theirs)


@difference(
    "trl",
    ORPO_TRAINER,
    "preference.orpo.orpo_terms",
    what="A rejected answer of probability 1 up to rounding has a finite loss; theirs is infinite.",
    why="Such answers exist, of one token or two. They agree up to a mean log-prob of -1e-6.",
    tolerance=FLOAT32,
)
def certain_answers(agreeing: bool) -> Both:
    chosen = torch.tensor([-0.5], dtype=torch.float64)
    rejected = torch.tensor([-2e-6 if agreeing else 0.0], dtype=torch.float64)
    theirs = trl_odds_ratio_losses(chosen, rejected, weight=1.0)
    return Both(ours=orpo_terms(chosen, rejected).ratio_loss, theirs=theirs.double())

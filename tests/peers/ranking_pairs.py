"""Losses of reward models: the mean over pairs of scores."""

from __future__ import annotations

from torch import Tensor

from rlhf_core.objective import ranking_loss

from .batches import Batch
from .pairs import Both, pair
from .released import load


def scores_of(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores of chosen and of rejected answers, and margins: something at each pair of rows."""
    half = len(batch.mask) // 2
    scores = batch.values[:, 0]
    return scores[:half], scores[half : 2 * half], batch.rewards[:half].abs()


@pair("openrlhf", "models.loss.PairWiseLoss", "objective.ranking_loss", gradient="values")
def openrlhf_pairwise(batch: Batch) -> Both:
    chosen, rejected, margin = scores_of(batch)
    theirs = load("openrlhf.models.loss").PairWiseLoss()(chosen, rejected, margin)
    return Both(ours=ranking_loss(chosen, rejected, margin).mean(), theirs=theirs)


@pair("openrlhf", "models.loss.LogExpLoss", "objective.ranking_loss", gradient="values")
def openrlhf_log_exp(batch: Batch) -> Both:
    chosen, rejected, _ = scores_of(batch)
    theirs = load("openrlhf.models.loss").LogExpLoss()(chosen, rejected)
    return Both(ours=ranking_loss(chosen, rejected).mean(), theirs=theirs)

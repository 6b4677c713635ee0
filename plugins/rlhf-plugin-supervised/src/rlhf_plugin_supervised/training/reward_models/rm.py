"""``rlhf rm``: a reward model, which learns to score the preferred one of two answers higher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_config import ResolvedOptions
from rlhf_core.contracts import (
    MARGIN,
    RankingObjective,
    RoleHandle,
    TrainBatch,
    TrajectoryColumns,
)
from rlhf_core.objective import ranking_loss
from rlhf_data import ExampleSets, load_pairs
from rlhf_trainer.runs import Exportable, generator_of

from ..options import REWARD_MODEL
from ..roles import TrainedModel
from ..seen import ModelNumbers, Seen, SeenRow
from ..sets import evaluated, load_sets
from ..trainer import Examples, run_of
from ..update import Evaluated, Update, scores_of
from .config_entries import WithEntries, statistics_of
from .rm_options import METRICS, RmOptions

STATISTICS_PAIRS = 1000
"""Pairs of the training set whose scores give mean and standard deviation where nothing is held out."""


class RankedAnswers(Examples):
    """See ``trainer.Examples``: two neighboring rows are the answers of a pair, the chosen one first.

    Args:
        seed: chooses the pairs of the training set that statistics are computed on.
        has_statistics: True: mean and standard deviation of scores are written beside the model.
    """

    rows_per_unit = 2

    def __init__(
        self,
        sets: ExampleSets,
        eval_batch_size: int,
        *,
        seed: int,
        has_statistics: bool,
    ) -> None:
        self.rows, self.sizes, self.images = sets.train, sets.sizes, sets.images
        self._held_out = sets.held_out
        self._eval_batch_size = eval_batch_size
        self._seed = seed
        self._has_statistics = has_statistics

    async def update(self, rows: NDArray[np.int64], model: RoleHandle) -> Update:
        return Update(batch=TrainBatch(trajectories=self.rows.select(rows), columns={}))

    def seen(self, update: Update, outputs: ModelNumbers) -> Seen:
        """Return the score of each answer, and the ranking loss of its pair."""
        rows = update.batch.trajectories
        scores = torch.from_numpy(outputs.numbers[rows.action_offsets[1:] - 1])  # (B,)
        chosen, rejected = scores[0::2], scores[1::2]  # (P,)
        margins = rows.rewards.get(MARGIN)
        margin = None if margins is None else torch.from_numpy(margins[0::2])
        losses = ranking_loss(chosen, rejected, margin).tolist()
        differences = (chosen - rejected).tolist()
        found = []
        for at, score in enumerate(scores.tolist()):
            difference = differences[at // 2]
            numbers = {
                "loss": losses[at // 2],
                "margin": difference,
                "right": float(difference > 0),
            }
            found.append(SeenRow(score=score, numbers=numbers, chosen=at % 2 == 0))
        return Seen(kind="pair", rows=found, columns={"values": outputs.numbers})

    async def evaluate(self, model: RoleHandle) -> Evaluated | None:
        """Return the mean ranking loss of the pairs held out, how often the chosen answer's score is the higher one, by
        how much on average, and mean and standard deviation of all scores."""
        if self._held_out is None:
            return None
        held_out = self._held_out.rows
        all_scores = await scores_of(held_out, model, self._eval_batch_size)  # (sum of A,)
        last_scores = all_scores[held_out.action_offsets[1:] - 1]  # (B,)
        margins = held_out.rewards.get(MARGIN)

        def metrics(rows: NDArray[np.int64]) -> Mapping[str, float]:
            scores = last_scores[rows]
            chosen, rejected = map(torch.from_numpy, (scores[0::2], scores[1::2]))  # (P,)
            margin = None if margins is None else torch.from_numpy(margins[rows][0::2])
            difference = chosen - rejected  # (P,)
            return {
                "loss": float(ranking_loss(chosen, rejected, margin).double().mean()),
                "accuracy": float((difference > 0).double().mean()),
                "margin": float(difference.double().mean()),
                "score_mean": float(scores.mean(dtype=np.float64)),
                "score_std": float(scores.std(dtype=np.float64, ddof=1)),
            }

        update = Update(batch=TrainBatch(trajectories=held_out, columns={}))
        return evaluated(self._held_out, metrics, update, ModelNumbers(numbers=all_scores))

    def exported(self, model: RoleHandle) -> Exportable:
        if not self._has_statistics:
            return model

        async def statistics() -> Mapping[str, float]:
            return statistics_of(await self._last_scores(self._typical(), model))

        return WithEntries(model, statistics)

    def _typical(self) -> TrajectoryColumns:
        """Return the rows whose scores are typical of the model's: those held out, else some of the training set."""
        if self._held_out is not None:
            return self._held_out.rows
        pairs = generator_of(self._seed, "statistics").permutation(len(self.rows) // 2)
        first = np.sort(pairs[:STATISTICS_PAIRS]) * 2  # (P,)
        return self.rows.select(np.stack([first, first + 1], axis=1).ravel())

    async def _last_scores(self, rows: TrajectoryColumns, model: RoleHandle) -> NDArray[np.float32]:
        """Return the score (B,) of each row, at the last token of its answer."""
        scores = await scores_of(rows, model, self._eval_batch_size)
        return scores[rows.action_offsets[1:] - 1]


def _load(resolved: ResolvedOptions[Any]) -> RankedAnswers:
    run: RmOptions = resolved.run
    sets = load_sets(resolved, load_pairs)
    return RankedAnswers(
        sets,
        run.eval.batch_size,
        seed=run.seed,
        has_statistics=run.ranking.statistics,
    )


def _trained(resolved: ResolvedOptions[Any]) -> TrainedModel:
    ranking = resolved.run.ranking
    return TrainedModel(
        objective=RankingObjective(loss=ranking.loss, center_coef=ranking.center_coef),
        role=REWARD_MODEL,
        head="score",
    )


run = run_of(_load, _trained, METRICS, binding=("ranking",))

"""``rlhf sft``: conversations whose assistant's turns are imitated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_config import ResolvedOptions
from rlhf_core.contracts import (
    ComponentRef,
    PolicyObjective,
    RoleHandle,
    Statistic,
    TrainBatch,
    TrajectoryColumns,
)
from rlhf_data import ExampleSets, HeldOutSets, load_conversations

from ..order import passes
from ..roles import TrainedModel
from ..seen import ModelNumbers, Seen, SeenRow
from ..sets import evaluated, load_sets
from ..trainer import Examples, run_of
from ..update import Evaluated, Update, logprobs_of
from .sft_options import METRICS, SftOptions

STATISTICS: tuple[Statistic, ...] = ("logprobs", "is_top1")
"""Numbers that the model gives for each held-out token."""


class ImitatedRows(Examples):
    """See ``trainer.Examples``: each row is a conversation, or a text of continued pre-training."""

    rows_per_unit = 1

    def __init__(self, sets: ExampleSets, eval_batch_size: int) -> None:
        self.rows, self.sizes, self.images = sets.train, sets.sizes, sets.images
        self.held_out = sets.held_out
        self._eval_batch_size = eval_batch_size

    async def update(self, rows: NDArray[np.int64], model: RoleHandle) -> Update:
        part = self.rows.select(rows)
        # Every objective on rollouts has this column; the loss of given responses reads nothing of it.
        ones = np.ones(int(part.num_actions.sum()), dtype=np.float32)
        return Update(batch=TrainBatch(trajectories=part, columns={"advantages": ones}))

    def seen(self, update: Update, outputs: ModelNumbers) -> Seen:
        """Return the mean log-prob of each row's learned tokens, and their mean loss where it is another number."""
        rows, logprobs, losses = update.batch.trajectories, outputs.numbers, outputs.losses
        means = row_means(rows, logprobs)
        numbers = [{"nll": -mean} for mean in means]
        columns = {"old_logprobs": logprobs}
        if losses is not None:
            columns["loss"] = losses
            if not np.array_equal(losses, -logprobs):
                found = zip(numbers, row_means(rows, losses), strict=True)
                numbers = [{**known, "loss": loss} for known, loss in found]
        seen = [
            SeenRow(score=mean, numbers=known) for mean, known in zip(means, numbers, strict=True)
        ]
        return Seen(kind="row", rows=seen, columns=columns)

    async def evaluate(self, model: RoleHandle) -> Evaluated | None:
        """Return the mean negative log-likelihood of the learned tokens held out, in nats, its exponential, and the
        share of these tokens than which the model finds none more probable."""
        if self.held_out is None:
            return None
        held_out, names = self.held_out, STATISTICS
        parts = [
            await model.statistics(held_out.rows.select(part), names)
            for part in passes(len(held_out.rows), self._eval_batch_size)
        ]
        logprobs, is_top1 = (np.concatenate([part[name] for part in parts]) for name in names)

        def metrics(rows: NDArray[np.int64]) -> Mapping[str, float]:
            learned = held_out.rows.action_index(rows)
            nll = -float(logprobs[learned].mean(dtype=np.float64))
            return {
                "nll": nll,
                "perplexity": math.exp(min(nll, 700.0)),
                "token_accuracy": float(is_top1[learned].mean(dtype=np.float64)),
            }

        update = Update(batch=TrainBatch(trajectories=held_out.rows, columns={}))
        return evaluated(
            held_out, metrics, update, ModelNumbers(numbers=logprobs, losses=-logprobs)
        )


def row_means(rows: TrajectoryColumns, column: NDArray[np.float32]) -> list[float]:
    """Return the mean of a column (sum of A,) over the learned tokens of each row."""
    sums = np.add.reduceat(column.astype(np.float64), rows.action_offsets[:-1])  # (B,)
    means: list[float] = (sums / rows.num_actions).tolist()
    return means


async def held_out_nll(
    held_out: HeldOutSets, model: RoleHandle, batch_size: int
) -> Callable[[NDArray[np.int64]], float]:
    """Return a function from indices of held-out rows to the mean negative log-likelihood of their learned tokens under
    a model, in nats; the model is asked once."""
    rows = held_out.rows
    logprobs = await logprobs_of(rows, model.logprobs, batch_size)
    return lambda chosen: -float(logprobs[rows.action_index(chosen)].mean(dtype=np.float64))


def load_rows(resolved: ResolvedOptions[SftOptions]) -> ImitatedRows:
    """Return the conversations, or texts, of a run's options."""
    sets = load_sets(resolved, load_conversations)
    return ImitatedRows(sets, resolved.run.eval.batch_size)


def _trained(resolved: ResolvedOptions[Any]) -> TrainedModel:
    train = resolved.run.train
    objective = PolicyObjective(
        loss=ComponentRef(
            kind="rlhf_policy_losses",
            name="supervised:sft",
            options={"loss": train.loss, "label_smoothing": train.label_smoothing},
        ),
        aggregation=train.aggregation,
    )
    return TrainedModel(objective=objective, embedding_noise=train.neftune_alpha)


run = run_of(load_rows, _trained, METRICS)

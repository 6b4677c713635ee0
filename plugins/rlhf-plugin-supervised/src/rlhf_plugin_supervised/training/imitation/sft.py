"""``rlhf sft``: conversations whose assistant's turns are imitated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_core.config import ResolvedOptions
from rlhf_core.contracts import (
    ComponentRef,
    PolicyObjective,
    RoleHandle,
    RunResult,
    Statistic,
    TrainBatch,
    TrajectoryColumns,
)
from rlhf_core.data import load_conversations
from rlhf_core.plugins import Plugins
from rlhf_core.runs import Control, Exportable, drive, image_reader

from ..course import TrainedModel, Update, kind_of, passes, renderer_of
from .distill_options import DistillOptions
from .sft_options import SftOptions


class ImitatedRows:
    """See ``course.Examples``: each row is a conversation, or a text of continued pre-training."""

    rows_per_unit = 1

    def __init__(
        self, rows: TrajectoryColumns, held_out: TrajectoryColumns | None, eval_batch_size: int
    ) -> None:
        self.rows = rows
        self.held_out = held_out
        self._eval_batch_size = eval_batch_size

    async def begin(self, model: RoleHandle, beside: Mapping[str, RoleHandle]) -> None:
        """Nothing has to be known of the policy."""

    async def update(self, rows: NDArray[np.int64], model: RoleHandle) -> Update:
        part = self.rows.select(rows)
        # Every objective on rollouts has this column; the loss of given responses reads nothing of it.
        ones = np.ones(int(part.num_actions.sum()), dtype=np.float32)
        return Update(batch=TrainBatch(trajectories=part, columns={"advantages": ones}))

    async def evaluate(self, model: RoleHandle) -> Mapping[str, float] | None:
        """Return the mean negative log-likelihood of the learned tokens held out, in nats, its exponential, and the
        share of these tokens than which the model finds none more probable."""
        if self.held_out is None:
            return None
        names: tuple[Statistic, ...] = ("logprobs", "is_top1")
        parts = [
            await model.statistics(self.held_out.select(part), names)
            for part in passes(len(self.held_out), self._eval_batch_size)
        ]
        logprobs, is_top1 = (np.concatenate([part[name] for part in parts]) for name in names)
        nll = -float(logprobs.mean(dtype=np.float64))
        return {
            "eval/nll": nll,
            "eval/perplexity": math.exp(min(nll, 700.0)),
            "eval/token_accuracy": float(is_top1.mean(dtype=np.float64)),
        }

    def exported(self, model: RoleHandle) -> Exportable:
        return model


def load_rows(
    resolved: ResolvedOptions[SftOptions] | ResolvedOptions[DistillOptions],
) -> ImitatedRows:
    """Return the conversations, or texts, of a run's options."""
    run, images = resolved.run, image_reader(resolved)
    renderer, eos = renderer_of(run, images)

    def rows(option: str, sets: tuple[str, ...]) -> TrajectoryColumns:
        found = load_conversations(
            sets, run.data, run.data, renderer, eos=eos, option=option, images=images
        )
        return found.columns

    held_out = rows("eval.data", run.eval.data) if run.eval.data else None
    return ImitatedRows(rows("data.train", run.data.train), held_out, run.eval.batch_size)


def _trained(resolved: ResolvedOptions[Any]) -> TrainedModel:
    objective = PolicyObjective(
        loss=ComponentRef(
            kind="rlhf_policy_losses",
            name="supervised:sft",
            options={"loss": resolved.run.train.loss},
        ),
        aggregation=resolved.run.train.aggregation,
    )
    return TrainedModel(objective=objective)


def run(
    resolved: ResolvedOptions[SftOptions], plugins: Plugins, control: Control | None = None
) -> RunResult:
    """Run a whole fine-tuning and return how it ended.

    Args:
        control: steers the run from outside; None: only signals can end it early.

    Raises:
        RLHFError: the run could not start, or failed; ``--resume auto`` goes on from the newest checkpoint.
    """
    return drive(kind_of(load_rows, _trained), resolved, plugins, control)

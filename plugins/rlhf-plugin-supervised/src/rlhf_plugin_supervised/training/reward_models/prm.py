"""``rlhf prm``: a process reward model, which learns whether each step of a solution is good.

The model has the head of a reward model, and the sigmoid of the score at a step's last token is the probability that
the step is good. OpenRLHF's earlier process reward models predicted one of two label tokens there: the difference of
the two logits is such a score. A head of its own needs no tokens with a second meaning, and its folder is loaded and
served like that of any reward model.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits

from rlhf_config import ResolvedOptions
from rlhf_core.contracts import (
    RoleHandle,
    StepLabelObjective,
    TrainBatch,
)
from rlhf_data import ExampleSets, load_step_labels
from rlhf_trainer.runs import Exportable

from ..options import REWARD_MODEL
from ..roles import TrainedModel
from ..seen import ModelNumbers, Seen, SeenRow
from ..sets import evaluated, load_sets
from ..trainer import Examples, run_of
from ..update import Evaluated, Update, scores_of
from .config_entries import WithEntries
from .prm_options import METRICS, PrmOptions

SEPARATOR = "step_separator"
"""Entry of ``config.json`` with the text behind each step."""


class LabeledSteps(Examples):
    """See ``trainer.Examples``: each row is a solution, and each of its learned tokens is the last one of a step.

    Args:
        separator: text behind each step.
    """

    rows_per_unit = 1

    def __init__(
        self,
        sets: ExampleSets,
        eval_batch_size: int,
        separator: str,
    ) -> None:
        self.rows, self.sizes, self.images = sets.train, sets.sizes, sets.images
        self._held_out = sets.held_out
        self._eval_batch_size = eval_batch_size
        self._separator = separator

    async def update(self, rows: NDArray[np.int64], model: RoleHandle) -> Update:
        part = self.rows.select(rows)
        return Update(batch=TrainBatch(trajectories=part, columns={"labels": part.action_rewards}))

    def seen(self, update: Update, outputs: ModelNumbers) -> Seen:
        """Return score and label of each step, and of each solution the mean loss and the share of steps told right."""
        rows = update.batch.trajectories
        all_labels, found = update.batch.columns["labels"], []
        for start, end in pairwise(rows.action_offsets.tolist()):
            scores = torch.from_numpy(outputs.numbers[start:end]).double()  # (A,)
            labels = torch.from_numpy(all_labels[start:end]).double()  # (A,)
            right = ((scores > 0) == (labels > 0.5)).double()
            numbers = {
                "loss": float(binary_cross_entropy_with_logits(scores, labels)),
                "right": float(right.mean()),
                "label": float(labels.mean()),
            }
            steps = list(zip(scores.tolist(), labels.tolist(), strict=True))
            good = float(scores.sigmoid().mean())
            found.append(SeenRow(score=good, numbers=numbers, steps=steps))
        return Seen(kind="steps", rows=found, columns={"values": outputs.numbers})

    async def evaluate(self, model: RoleHandle) -> Evaluated | None:
        """Return, over the steps held out, the mean cross-entropy in nats, how often a step is told to be what it is,
        the mean probability of being good, and the mean label."""
        if self._held_out is None:
            return None
        held_out = self._held_out.rows
        all_scores = await scores_of(held_out, model, self._eval_batch_size)
        all_labels = held_out.action_rewards

        def metrics(rows: NDArray[np.int64]) -> Mapping[str, float]:
            at = held_out.action_index(rows)
            scores = torch.from_numpy(all_scores[at]).double()  # (sum of A,)
            labels = torch.from_numpy(all_labels[at]).double()  # (sum of A,)
            return {
                "loss": float(binary_cross_entropy_with_logits(scores, labels)),
                "accuracy": float(((scores > 0) == (labels > 0.5)).double().mean()),
                "good": float(scores.sigmoid().mean()),
                "label": float(labels.mean()),
            }

        batch = TrainBatch(trajectories=held_out, columns={"labels": all_labels})
        return evaluated(
            self._held_out, metrics, Update(batch=batch), ModelNumbers(numbers=all_scores)
        )

    def exported(self, model: RoleHandle) -> Exportable:
        async def entries() -> Mapping[str, str]:
            return {SEPARATOR: self._separator}

        return WithEntries(model, entries)


def _load(resolved: ResolvedOptions[Any]) -> LabeledSteps:
    run: PrmOptions = resolved.run
    sets = load_sets(resolved, load_step_labels)
    return LabeledSteps(sets, run.eval.batch_size, run.data.separator)


def _trained(resolved: ResolvedOptions[Any]) -> TrainedModel:
    return TrainedModel(
        objective=StepLabelObjective(), role=REWARD_MODEL, head="score", learns_ends=False
    )


run = run_of(_load, _trained, METRICS)

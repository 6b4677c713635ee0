"""``rlhf distill``: a student learns a teacher's distribution at the learned tokens of given conversations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_config import ResolvedOptions
from rlhf_core.contracts import (
    ComponentRef,
    LossTerm,
    PolicyObjective,
    RoleHandle,
    RoleSpec,
    TrainBatch,
)
from rlhf_data import load_tokenizer
from rlhf_trainer.runs import vision_spec

from ..loaders import require_one_tokenizer
from ..roles import TrainedModel
from ..seen import ModelNumbers, Seen
from ..sets import held_out_metrics
from ..trainer import Examples, run_of
from ..update import Evaluated, Update
from .distill_options import METRICS, DistillOptions
from .sft import ImitatedRows, held_out_nll
from .teacher_rendering import TwoReadings, load_readings

TEACHER = "teacher"


class TaughtRows(Examples):
    """See ``trainer.Examples``: each row is a conversation, or a text of continued pre-training.

    Args:
        readings: the rows, and those held out, as both models read them.
        top_k: number of the teacher's most probable tokens that the student learns of at each position.
    """

    rows_per_unit = 1

    def __init__(self, readings: TwoReadings, eval_batch_size: int, *, top_k: int) -> None:
        self._readings = readings
        imitated = ImitatedRows(readings.student, eval_batch_size)
        self.rows, self.sizes, self.images = imitated.rows, imitated.sizes, imitated.images
        self._imitated = imitated
        self._eval_batch_size = eval_batch_size
        self._top_k = top_k
        self._teacher: RoleHandle | None = None
        self._teacher_nll: Mapping[str, float] = {}
        """Negative log-likelihood of the held-out tokens under the teacher, in nats per token, by metric."""

    async def begin(self, model: RoleHandle, beside: Mapping[str, RoleHandle]) -> None:
        """Ask the teacher how likely the held-out tokens are, once: it does not learn."""
        self._teacher = beside[TEACHER]
        held_out = self._readings.teacher.held_out
        if held_out is not None:
            nll_of = await held_out_nll(held_out, self._teacher, self._eval_batch_size)
            self._teacher_nll = held_out_metrics(
                held_out, lambda rows: {"teacher_nll": nll_of(rows)}
            )

    async def update(self, rows: NDArray[np.int64], model: RoleHandle) -> Update:
        assert self._teacher is not None
        given = (await self._imitated.update(rows, model)).batch
        read = self._readings.teacher.train.select(rows)
        top = self._readings.as_student(await self._teacher.top_tokens(read, self._top_k))
        return Update(
            batch=TrainBatch(
                trajectories=given.trajectories, columns=given.columns, teacher_top=top
            )
        )

    def seen(self, update: Update, outputs: ModelNumbers) -> Seen:
        """Return the mean log-prob of each row's learned tokens, and their mean divergence from the teacher."""
        return self._imitated.seen(update, outputs)

    async def evaluate(self, model: RoleHandle) -> Evaluated | None:
        """Return the student's likelihood of the learned tokens held out as ``rlhf sft`` does, and the teacher's."""
        found = await self._imitated.evaluate(model)
        if found is None:
            return None
        return replace(found, metrics={**found.metrics, **self._teacher_nll})


def _load(resolved: ResolvedOptions[Any]) -> TaughtRows:
    run: DistillOptions = resolved.run
    model = run.model
    trusted = model.trust_remote_code
    student = load_tokenizer(model.tokenizer or model.path, trust_remote_code=trusted)
    require_one_tokenizer(run, student)
    return TaughtRows(load_readings(resolved), run.eval.batch_size, top_k=run.teacher.top_k)


def _trained(resolved: ResolvedOptions[Any]) -> TrainedModel:
    run: DistillOptions = resolved.run
    teacher = run.teacher
    assert teacher.path is not None
    terms: tuple[LossTerm, ...] = ()
    if teacher.nll_coef:
        likelihood = LossTerm(
            loss=ComponentRef(kind="rlhf_policy_losses", name="supervised:sft"),
            weight=teacher.nll_coef,
            aggregation=run.train.aggregation,
        )
        terms = (likelihood,)
    objective = PolicyObjective(
        loss=ComponentRef(
            kind="rlhf_policy_losses",
            name="supervised:distill",
            options={
                "divergence": "top_k",
                "direction": teacher.direction,
                "teacher_share": teacher.share,
            },
        ),
        aggregation=run.train.aggregation,
        terms=terms,
    )
    spec = RoleSpec(
        role=TEACHER,
        model_path=teacher.path,
        dtype=run.model.dtype,
        trust_remote_code=run.model.trust_remote_code,
        max_tokens_per_micro_batch=run.train.max_tokens_per_micro_batch,
        top_temperature=teacher.temperature,
        vision=vision_spec(resolved),
    )
    return TrainedModel(
        objective=objective, beside={TEACHER: spec}, top_temperature=teacher.temperature
    )


run = run_of(_load, _trained, METRICS, binding=("teacher",))

"""Answers that were judged one by one, as KTO learns from: ``rlhf dpo`` with a loss on single answers."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_core.contracts import (
    AnswerLogprobs,
    PreferenceInputs,
    PreferenceLoss,
    RoleHandle,
    TrainBatch,
    TrajectoryColumns,
)
from rlhf_data import ExampleSets
from rlhf_trainer.runs import Exportable

from ..seen import Seen, Told
from ..sets import held_out_metrics
from ..update import Evaluated, Update, logprobs_of
from .mismatched import mismatched
from .seen_answers import seen_judged
from .sums import answer_sums

log = logging.getLogger(__name__)


class JudgedAnswers:
    """See ``course.Examples``: each row is an answer, whose reward is 1 for a good one and 0 for another.

    The reference is that of ``dpo.PreferredAnswers``.

    Args:
        has_adapter: True: the model has an adapter.
        needs_kl: True: the loss looks at the mean log-ratio of answers beside the prompts of others.
        max_length: tokens of a sequence, prompt included.
    """

    rows_per_unit = 1

    def __init__(
        self,
        sets: ExampleSets,
        loss: PreferenceLoss,
        *,
        has_reference: bool,
        has_adapter: bool,
        needs_kl: bool,
        eval_batch_size: int,
        max_length: int,
    ) -> None:
        self.rows, self.sizes, self.images = sets.train, sets.sizes, sets.images
        self._loss = loss
        self._held_out = sets.held_out
        parts = {"train": sets.train}
        if sets.held_out is not None:
            parts["held out"] = sets.held_out.rows
        self._sets = {
            name: _Judged(part, mismatched(part, max_length) if needs_kl else None)
            for name, part in parts.items()
        }
        self._has_reference = has_reference
        self._has_adapter = has_adapter
        self._eval_batch_size = eval_batch_size

    async def begin(self, model: RoleHandle, beside: Mapping[str, RoleHandle]) -> None:
        """Compute the reference's log-probs, by the model that has not learned yet."""
        good = int((self.rows.reward > 0.5).sum())
        log.info("%s good answers and %s bad ones", good, len(self.rows) - good)
        if not self._has_reference:
            return
        logprobs = model.base_logprobs if self._has_adapter else model.logprobs
        for part in self._sets.values():
            part.reference = await logprobs_of(part.rows, logprobs, self._eval_batch_size)
            if part.mismatched is not None:
                found = await logprobs_of(part.mismatched, logprobs, self._eval_batch_size)
                part.mismatched_reference = answer_sums(part.mismatched, found)

    async def update(self, rows: NDArray[np.int64], model: RoleHandle) -> Update:
        train = self._sets["train"]
        columns = {}
        if train.reference is not None:
            columns["ref_logprobs"] = train.reference[self.rows.action_index(rows)]
        batch = TrainBatch(trajectories=self.rows.select(rows), columns=columns)
        kl = await train.mismatched_kl(rows, model, self._eval_batch_size)
        return Update(batch=batch, mismatched_kl=kl)

    def seen(self, update: Update, told: Told) -> Seen:
        """Return loss and implicit reward of each answer."""
        return seen_judged(self._loss, update, told.numbers)

    async def evaluate(self, model: RoleHandle) -> Evaluated | None:
        """Return the mean loss of the answers held out, and the difference of the mean implicit rewards of good and bad
        ones, where there are both."""
        if self._held_out is None:
            return None
        held_out, size = self._sets["held out"], self._eval_batch_size
        rows = held_out.rows
        logprobs = await logprobs_of(rows, model.logprobs, size)
        policy = answer_sums(rows, logprobs)  # (B,)
        reference = (
            None if held_out.reference is None else answer_sums(rows, held_out.reference)
        )  # (B,)
        log_ratios = await held_out.mismatched_log_ratios(np.arange(len(rows)), model, size)
        num_tokens = torch.from_numpy(rows.num_actions)
        is_good = rows.reward > 0.5

        def answers(chosen: NDArray[np.int64]) -> AnswerLogprobs:
            return AnswerLogprobs(
                policy=policy[chosen],
                reference=None if reference is None else reference[chosen],
                num_tokens=num_tokens[chosen],
            )

        def metrics(chosen: NDArray[np.int64]) -> Mapping[str, float]:
            good, bad = chosen[is_good[chosen]], chosen[~is_good[chosen]]
            kl = None if log_ratios is None else mean_of(log_ratios[chosen])
            result = self._loss(
                PreferenceInputs(
                    chosen=answers(good),
                    rejected=answers(bad),
                    mismatched_kl=None if kl is None else policy.new_tensor(kl),
                )
            )
            found = {"loss": float(result.loss.mean())}
            if len(good) and len(bad):
                margin = result.chosen_rewards.mean() - result.rejected_rewards.mean()
                found["margin"] = float(margin)
            return found

        columns = {} if held_out.reference is None else {"ref_logprobs": held_out.reference}
        return Evaluated(
            metrics=held_out_metrics(self._held_out, metrics),
            sets=self._held_out.sets,
            update=Update(
                batch=TrainBatch(trajectories=rows, columns=columns),
                mismatched_kl=None if log_ratios is None else mean_of(log_ratios),
            ),
            told=Told(numbers=logprobs),
        )

    def exported(self, model: RoleHandle) -> Exportable:
        return model


class _Judged:
    """A set of judged answers, the same answers beside other prompts, and what the reference says of both."""

    def __init__(self, rows: TrajectoryColumns, mismatched: TrajectoryColumns | None) -> None:
        self.rows = rows
        self.mismatched = mismatched
        self.reference: NDArray[np.float32] | None = None
        """(sum of A,) of ``rows``."""
        self.mismatched_reference: torch.Tensor | None = None
        """(B,) of ``mismatched``."""

    async def mismatched_kl(
        self, rows: NDArray[np.int64], model: RoleHandle, batch_size: int
    ) -> float | None:
        """Return the mean log-ratio of the model to the reference over the mismatched answers of these prompts; None if
        the loss does not look at it."""
        log_ratios = await self.mismatched_log_ratios(rows, model, batch_size)
        return None if log_ratios is None else mean_of(log_ratios)

    async def mismatched_log_ratios(
        self, rows: NDArray[np.int64], model: RoleHandle, batch_size: int
    ) -> torch.Tensor | None:
        """Return the log-ratio (B,) of the model to the reference of the mismatched answer of each of these prompts;
        None if the loss does not look at it."""
        if self.mismatched is None or self.mismatched_reference is None:
            return None
        chosen = self.mismatched.select(rows)
        sums = answer_sums(chosen, await logprobs_of(chosen, model.logprobs, batch_size))  # (B,)
        return sums - self.mismatched_reference[torch.from_numpy(rows)]


def mean_of(log_ratios: torch.Tensor) -> float:
    """Return the mean in double precision."""
    return float(log_ratios.double().mean())

"""Answers that were judged one by one, as KTO learns from: ``rlhf dpo`` with a loss on single answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_core import DataError
from rlhf_core.contracts import (
    PreferenceInputs,
    PreferenceLoss,
    RoleHandle,
    TrainBatch,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
)
from rlhf_core.media import MediaSpan
from rlhf_data import ExampleSets

from ..seen import ModelNumbers, Seen
from ..sets import evaluated
from ..trainer import Examples
from ..update import Evaluated, Update, logprobs_of
from .answers import answer_sums, answers_of, seen_judged
from .reference import ReferenceLogprobs

SHIFTS = 256
"""Number of shifts that are tried for one under which no prompt meets an answer of its own."""

log = logging.getLogger(__name__)


class JudgedAnswers(Examples):
    """See ``trainer.Examples``: each row is an answer, whose reward is 1 for a good one and 0 for another.

    The reference is that of ``dpo.PreferredAnswers``.

    Args:
        has_adapter: True: the model has an adapter.
        follows: True: the reference follows the model.
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
        follows: bool,
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
        by_rows = partial(
            ReferenceLogprobs, has_adapter=has_adapter, follows=follows, batch_size=eval_batch_size
        )
        self._sets = {
            name: _Judged(
                part,
                mismatched(part, max_length) if needs_kl else None,
                by_rows if has_reference else None,
            )
            for name, part in parts.items()
        }
        self._eval_batch_size = eval_batch_size

    async def begin(self, model: RoleHandle, beside: Mapping[str, RoleHandle]) -> None:
        """Compute the reference's log-probs, by the model that has not learned yet."""
        say_labels(self.rows.reward)
        for part in self._sets.values():
            for reference in (part.reference, part.mismatched_reference):
                if reference is not None:
                    await reference.begin(model)

    async def update(self, rows: NDArray[np.int64], model: RoleHandle) -> Update:
        train = self._sets["train"]
        columns = {}
        if train.reference is not None:
            columns["ref_logprobs"] = await train.reference.of(rows, model)
        batch = TrainBatch(trajectories=self.rows.select(rows), columns=columns)
        kl = await train.mismatched_kl(rows, model, self._eval_batch_size)
        return Update(batch=batch, mismatched_kl=kl)

    def seen(self, update: Update, outputs: ModelNumbers) -> Seen:
        """Return loss and implicit reward of each answer."""
        return seen_judged(self._loss, update, outputs.numbers)

    async def evaluate(self, model: RoleHandle) -> Evaluated | None:
        """Return the mean loss of the answers held out, and the difference of the mean implicit rewards of good and bad
        ones, where there are both."""
        if self._held_out is None:
            return None
        held_out, size = self._sets["held out"], self._eval_batch_size
        rows = held_out.rows
        logprobs = await logprobs_of(rows, model.logprobs, size)
        columns = {}
        if held_out.reference is not None:
            columns["ref_logprobs"] = await held_out.reference.of_all(model)
        batch = TrainBatch(trajectories=rows, columns=columns)
        log_ratios = await held_out.mismatched_log_ratios(np.arange(len(rows)), model, size)
        is_good = rows.reward > 0.5

        def metrics(chosen: NDArray[np.int64]) -> Mapping[str, float]:
            good, bad = chosen[is_good[chosen]], chosen[~is_good[chosen]]
            kl = None if log_ratios is None else mean_of(log_ratios[chosen])
            result = self._loss(
                PreferenceInputs(
                    chosen=answers_of(batch, logprobs, good),
                    rejected=answers_of(batch, logprobs, bad),
                    mismatched_kl=None if kl is None else torch.tensor(kl, dtype=torch.float32),
                )
            )
            found = {"loss": float(result.loss.mean())}
            if len(good) and len(bad):
                margin = result.chosen_rewards.mean() - result.rejected_rewards.mean()
                found["margin"] = float(margin)
            return found

        kl = None if log_ratios is None else mean_of(log_ratios)
        update = Update(batch=batch, mismatched_kl=kl)
        return evaluated(self._held_out, metrics, update, ModelNumbers(numbers=logprobs))


class _Judged:
    """A set of judged answers, the same answers beside other prompts, and what the reference says of both."""

    def __init__(
        self,
        rows: TrajectoryColumns,
        mismatched: TrajectoryColumns | None,
        by_rows: Callable[[TrajectoryColumns], ReferenceLogprobs] | None,
    ) -> None:
        self.rows = rows
        self.mismatched = mismatched
        self.reference = None if by_rows is None else by_rows(rows)
        self.mismatched_reference: ReferenceLogprobs | None = None
        if by_rows is not None and mismatched is not None:
            self.mismatched_reference = by_rows(mismatched)

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
        return sums - answer_sums(chosen, await self.mismatched_reference.of(rows, model))


def say_labels(rewards: NDArray[np.float32]) -> None:
    """Log how many answers are good, or warn that all are of one kind.

    Args:
        rewards: (B,), 1 of a good answer and 0 of a bad one.
    """
    total, good = len(rewards), int((rewards > 0.5).sum())
    if good not in (0, total):
        log.info("%s good answers and %s bad ones", good, total - good)
        return
    kind, other, moves, missing = (
        ("good", "bad", "more", "false") if good else ("bad", "good", "less", "true")
    )
    log.warning(
        "all %s answers are %s ones: expected some of both kinds. The loss alone makes each of them %s likely, and no "
        "%s answer holds against it; add rows whose label is %s",
        total,
        kind,
        moves,
        other,
        missing,
    )


def mean_of(log_ratios: torch.Tensor) -> float:
    """Return the mean in double precision."""
    return float(log_ratios.double().mean())


def mismatched(rows: TrajectoryColumns, max_length: int) -> TrajectoryColumns:
    """Return the prompt of each row, with its images and the answer of another row, in the order of the prompts.

    Over these answers KTO estimates how far the policy is from the reference.

    Row i has the answer of row ``i + s``, modulo their number, with the smallest ``s`` under which no row has an answer
    to its own prompt; of the first 256 the one with the fewest such rows. So each answer is there once, and the
    partners are the same in every epoch.

    Args:
        rows: prompts, each with one answer at its end.
        max_length: tokens of a sequence; an answer that is too long beside its new prompt loses its end.

    Raises:
        DataError: all rows have the same prompt.

    Source: Ethayarajh et al. 2024, arXiv:2402.01306, section 4. TRL shifts by 1, also between equal prompts.
    """
    tokens, mask = rows.token_ids, rows.action_mask
    prompts, answers, names = [], [], []
    seen = rows.tokens_with_images()
    for row, (first, end) in enumerate(pairwise(rows.token_offsets.tolist())):
        actions = first + np.flatnonzero(mask[first:end])
        prompts.append(tokens[first : actions[0]])
        answers.append(tokens[actions[0] : actions[-1] + 1])
        names.append(seen[row][: actions[0] - first].tobytes())
    shift = _shift(names)
    partners = np.roll(np.arange(len(rows)), -shift)
    return TrajectoryColumns.from_trajectories(
        [
            _joined(
                index, prompt, answers[partner][: max_length - len(prompt)], rows.media_of(index)
            )
            for index, (prompt, partner) in enumerate(zip(prompts, partners, strict=True))
        ]
    )


def _shift(prompts: list[bytes]) -> int:
    """Return the shift under which the fewest prompts meet themselves."""
    names = np.unique(np.array(prompts, dtype=object), return_inverse=True)[1]
    counts = [
        int((names == np.roll(names, -shift)).sum())
        for shift in range(1, min(len(names), SHIFTS + 1))
    ]
    if not counts or min(counts) == len(names):
        raise DataError(
            "expected answers to at least two different prompts: the mean KL to the reference is estimated over "
            f"answers beside the prompts of others; all {len(names)} rows have the same prompt. "
            "Add rows with another; of held-out rows, hold more of them out (--eval.fraction)",
            code="data/too-few-prompts",
        )
    return counts.index(min(counts)) + 1


def _joined(
    index: int,
    prompt: NDArray[np.int32],
    answer: NDArray[np.int32],
    media: tuple[MediaSpan, ...],
) -> Trajectory:
    start, end = len(prompt), len(prompt) + len(answer)
    return Trajectory(
        uid=Uid(0, index),
        token_ids=np.concatenate([prompt, answer]),
        action_mask=np.arange(end) >= start,
        rollout_logprobs=np.zeros(len(answer), dtype=np.float32),
        weight_version=np.zeros(len(answer), dtype=np.int32),
        turns=(Turn(start=start, end=end),),
        media=media,
    )

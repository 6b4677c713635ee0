"""The record of rows: a few that a step trained on, or that are held out, with what the model said of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlhf_config import ResolvedOptions
from rlhf_core.capabilities import HEARS_TOKENS
from rlhf_core.contracts import (
    StepOutcome,
    StepPlan,
    TopTokens,
    TrainBatch,
)
from rlhf_core.media import ImagesOnUse
from rlhf_data import TokenizerRenderer, load_tokenizer, used_images

from .options import ExampleOptions
from .row_samples import plain_tokens, samples_of
from .seen import ModelNumbers, Seen
from .update import Evaluated, Update

EPOCH = -1
"""The epoch in the names of rows that are held out, as in those of an evaluation's rollouts."""


class Describes(Protocol):
    """Part of ``trainer.Examples``."""

    rows_per_unit: int
    images: ImagesOnUse | None

    def seen(self, update: Update, outputs: ModelNumbers) -> Seen:
        """Return what is known of the rows of an update."""


class RowRecorder:
    """Takes some units of each update, spread evenly, and the first of each held-out set, and returns them as samples.

    Args:
        count: most units of an update, and of a held-out set; 0: none are recorded, and nothing is computed for them.
        has_scores: the model gives scores, others log-probs. Both are those of the update's own forward pass.
        hears_tokens: an observer of the run gets tokens.
    """

    def __init__(
        self,
        examples: Describes,
        renderer: TokenizerRenderer | None,
        *,
        count: int,
        has_scores: bool,
        hears_tokens: bool,
    ) -> None:
        self._examples, self._renderer = examples, renderer
        self._count, self._has_scores, self._hears_tokens = count, has_scores, hears_tokens

    @classmethod
    def of(
        cls, resolved: ResolvedOptions[Any], examples: Describes, *, has_scores: bool
    ) -> RowRecorder:
        """Return the recorder that a run's options describe."""
        run: ExampleOptions = resolved.run
        renderer = None
        if run.log.samples:
            path, trusted = (
                run.model.tokenizer or run.model.path,
                run.model.trust_remote_code,
            )
            renderer = TokenizerRenderer.by(
                run.data, load_tokenizer(path, trust_remote_code=trusted)
            )
        return cls(
            examples,
            renderer,
            count=run.log.samples,
            has_scores=has_scores,
            hears_tokens=resolved.provides("observers.use", HEARS_TOKENS),
        )

    def asking(self, plan: StepPlan) -> StepPlan:
        """Return the plan of an update that also returns what is recorded of its forward pass: scores, or log-probs and
        the losses of tokens."""
        if not self._count:
            return plan
        if self._has_scores:
            return replace(plan, return_values=True)
        return replace(plan, return_logprobs=True, return_losses=True)

    def samples(
        self, update: Update, outcome: StepOutcome, *, epoch: int
    ) -> list[dict[str, Any]] | None:
        """Return the recorded rows as samples of ``samples.jsonl``, with their tokens where somebody hears them; None:
        none are wanted, or the backend returns nothing of its pass."""
        numbers = outcome.values if self._has_scores else outcome.logprobs
        if not self._count or numbers is None:
            return None
        outputs, chosen = ModelNumbers(numbers=numbers, losses=outcome.losses), self._spread(update)
        return self._samples(update, outputs, chosen, epoch, with_tokens=self._hears_tokens)

    def held_out(self, evaluated: Evaluated) -> list[dict[str, Any]]:
        """Return the first units of each held-out set, the same at each evaluation, as samples of
        ``eval_samples.jsonl``, with the name of the set as ``eval`` and with their tokens."""
        found: list[dict[str, Any]] = []
        for name, rows in evaluated.sets.items() if self._count else ():
            first = rows[: self._count * self._examples.rows_per_unit]
            samples = self._samples(
                evaluated.update, evaluated.outputs, first, EPOCH, with_tokens=True
            )
            for sample in samples:
                tokens = plain_tokens(sample.pop("tokens"))
                found.append({"eval": name, **sample, "tokens": tokens})
        return found

    def _samples(
        self,
        update: Update,
        outputs: ModelNumbers,
        rows: NDArray[np.int64],
        epoch: int,
        *,
        with_tokens: bool,
    ) -> list[dict[str, Any]]:
        assert self._renderer is not None
        actions = update.batch.trajectories.action_index(rows)
        part = _part(update, rows, actions)
        losses = None if outputs.losses is None else outputs.losses[actions]
        seen = self._examples.seen(
            part, ModelNumbers(numbers=outputs.numbers[actions], losses=losses)
        )
        shown = used_images(part.batch.trajectories, self._examples.images)
        return samples_of(shown, seen, self._renderer, epoch, with_tokens=with_tokens)

    def _spread(self, update: Update) -> NDArray[np.int64]:
        """Return the rows of an update that are recorded."""
        size = self._examples.rows_per_unit
        units = len(update.batch.trajectories) // size
        places = np.linspace(0, units - 1, min(self._count, units)).round().astype(np.int64)
        return (np.unique(places)[:, None] * size + np.arange(size)).ravel()


def _part(update: Update, rows: NDArray[np.int64], actions: NDArray[np.int64]) -> Update:
    """Return some rows of an update, with their columns."""
    batch, top = update.batch, update.batch.teacher_top
    if top is not None:
        top = TopTokens(token_ids=top.token_ids[actions], logprobs=top.logprobs[actions])
    return Update(
        batch=TrainBatch(
            trajectories=batch.trajectories.select(rows),
            columns={name: column[actions] for name, column in batch.columns.items()},
            teacher_top=top,
        ),
        mismatched_kl=update.mismatched_kl,
    )

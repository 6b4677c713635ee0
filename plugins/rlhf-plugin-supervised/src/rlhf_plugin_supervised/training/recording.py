"""The record of the rows that a step trained on: a few of them as samples, with what the model said of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlhf_config import ResolvedOptions
from rlhf_core.capabilities import HEARS_TOKENS
from rlhf_core.contracts import (
    SampleTokens,
    StepOutcome,
    StepPlan,
    TopTokens,
    TrainBatch,
    TrajectoryColumns,
)
from rlhf_data import TokenizerRenderer, load_tokenizer

from .options import ExampleOptions
from .seen import Kind, Seen, SeenRow, Told
from .update import Update

LEARNED, READ = "policy", "environment"
"""Who wrote a part of a response, in the words of ``samples.jsonl``: learned tokens stand where the policy's do."""


class Describes(Protocol):
    """Part of ``course.Examples``."""

    rows_per_unit: int

    def seen(self, update: Update, told: Told) -> Seen:
        """Return what is known of the rows of an update."""
        ...


class RowRecorder:
    """Takes some units of each update, spread evenly, and returns them as samples.

    Args:
        count: most units of an update; 0: none are recorded, and nothing is computed for them.
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
        told = outcome.values if self._has_scores else outcome.logprobs
        if not self._count or self._renderer is None or told is None:
            return None
        rows = update.batch.trajectories
        chosen = self._rows(rows)
        actions = rows.action_index(chosen)
        losses = None if outcome.losses is None else outcome.losses[actions]
        part = _part(update, chosen, actions)
        seen = self._examples.seen(part, Told(numbers=told[actions], losses=losses))
        return _samples(part.batch.trajectories, seen, self._renderer, epoch, self._hears_tokens)

    def _rows(self, rows: TrajectoryColumns) -> NDArray[np.int64]:
        size = self._examples.rows_per_unit
        units = len(rows) // size
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


def _samples(
    rows: TrajectoryColumns, seen: Seen, renderer: TokenizerRenderer, epoch: int, with_tokens: bool
) -> list[dict[str, Any]]:
    samples = []
    for at, (row, uid) in enumerate(zip(seen.rows, rows.uid.tolist(), strict=True)):
        token_ids = rows.token_ids[slice(*rows.token_offsets[at : at + 2])]
        learned = rows.action_mask[slice(*rows.token_offsets[at : at + 2])]
        sample = {
            "uid": ".".join(map(str, [epoch, *uid[1:]])),
            **_texts(seen.kind, row, token_ids, learned, renderer),
            "reward": row.score,
            "rewards": dict(row.numbers),
            "truncated": bool(rows.truncated[at]),
            "example": seen.kind,
        }
        if row.chosen is not None:
            sample["chosen"] = row.chosen
        if with_tokens:
            own = slice(*rows.action_offsets[at : at + 2])
            columns = {name: column[own] for name, column in seen.columns.items()}
            sample["tokens"] = _tokens(token_ids, learned, columns, renderer)
        samples.append(sample)
    return samples


def _texts(
    kind: Kind,
    row: SeenRow,
    token_ids: NDArray[np.int32],
    learned: NDArray[np.bool_],
    renderer: TokenizerRenderer,
) -> dict[str, Any]:
    """Return prompt and response, and their parts: what is learned of and what is read, or the labeled steps."""
    places = np.flatnonzero(learned)
    first = 0 if kind == "steps" else int(places[0])
    edges = places + 1 if kind == "steps" else np.flatnonzero(np.diff(learned)) + 1
    bounds = [first, *edges[edges > first].tolist()]
    if bounds[-1] < len(token_ids):
        bounds.append(len(token_ids))
    spans = list(itertools.pairwise(bounds))
    texts = renderer.decode_batch([token_ids[start:end].tolist() for start, end in spans])
    found: dict[str, Any] = {
        "prompt": renderer.decode(token_ids[:first].tolist()),
        "response": renderer.decode(token_ids[first:].tolist()),
    }
    if kind == "steps":
        found["steps"] = [[text, *numbers] for text, numbers in zip(texts, row.steps, strict=False)]
    elif len(spans) > 1:
        writers = [LEARNED if learned[start] else READ for start, _ in spans]
        found["parts"] = [list(pair) for pair in zip(writers, texts, strict=True)]
    return found


def _tokens(
    token_ids: NDArray[np.int32],
    learned: NDArray[np.bool_],
    columns: Mapping[str, NDArray[np.float32]],
    renderer: TokenizerRenderer,
) -> SampleTokens:
    found, places = np.unique(token_ids, return_inverse=True)
    texts: Sequence[str] = renderer.decode_batch(
        [[token] for token in found.tolist()], skip_special_tokens=False
    )
    return SampleTokens(
        token_ids=token_ids,
        texts=tuple(texts[place] for place in places.tolist()),
        action_mask=learned,
        weight_version=np.zeros(int(learned.sum()), dtype=np.int32),
        columns=columns,
    )

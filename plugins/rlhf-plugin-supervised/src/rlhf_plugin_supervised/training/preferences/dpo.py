"""``rlhf dpo``: pairs of answers to one prompt, of which one was preferred; or answers that were judged one by one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_config import ReferenceSync, ResolvedOptions
from rlhf_core.contracts import (
    ANSWER_WEIGHTS,
    PAIR_WEIGHTS,
    MatchedPairs,
    PreferenceInputs,
    PreferenceLoss,
    PreferenceObjective,
    PreferenceTerm,
    RoleHandle,
    TrainBatch,
    TrajectoryColumns,
)
from rlhf_core.objective import PreferenceSum, WeightedPreferenceLoss
from rlhf_data import ExampleSets

from ..loaders import preference_loader
from ..roles import TrainedModel
from ..seen import ModelNumbers, Seen
from ..sets import evaluated, load_sets
from ..trainer import Examples, run_of
from ..update import Evaluated, Update, logprobs_of
from .answers import (
    answers_of,
    length_weights,
    matched_columns,
    pair_weights,
    seen_pairs,
    weighted_losses,
)
from .dpo_options import METRICS, DpoOptions, is_single, losses_of, weight_of
from .judged import JudgedAnswers
from .reference import ReferenceLogprobs


class PreferredAnswers(Examples):
    """See ``trainer.Examples``: two neighboring rows are the answers of a pair, the chosen one first.

    The reference is the policy before its first update, under an adapter the policy without it. Its log-probs of all
    rows are computed once, when a process starts, so no second model is in memory. A reference that follows the policy
    is a copy of what the policy trains; its log-probs are computed before each update.

    Args:
        has_reference: False: the loss does not look at a reference.
        needs_matches: True: the loss looks at what is matched with each pair, so the policy's log-probs are computed
            before each update.
        has_adapter: True: the policy has an adapter.
        follows: True: the reference follows the policy.
        wpo: True: losses of pairs are weighted by the policy's probability of them before each update
            (``answers.pair_weights``), which takes passes of their own.
        ld_alpha: weight of the tokens beyond the shorter answer of their pair (``answers.length_weights``).
    """

    rows_per_unit = 2

    def __init__(
        self,
        sets: ExampleSets,
        loss: PreferenceLoss,
        *,
        has_reference: bool,
        needs_matches: bool,
        has_adapter: bool,
        follows: bool,
        eval_batch_size: int,
        ld_alpha: float = 1.0,
        wpo: bool = False,
    ) -> None:
        self._wpo = wpo
        self._needs_matches = needs_matches
        self._ld_alpha = ld_alpha
        self.rows, self.sizes, self.images = sets.train, sets.sizes, sets.images
        self._held_out = sets.held_out
        self._loss = loss
        self._eval_batch_size = eval_batch_size
        self._reference: ReferenceLogprobs | None = None
        self._held_out_reference: ReferenceLogprobs | None = None
        if has_reference:
            by_rows = partial(
                ReferenceLogprobs,
                has_adapter=has_adapter,
                follows=follows,
                batch_size=eval_batch_size,
            )
            self._reference = by_rows(sets.train)
            if sets.held_out is not None:
                self._held_out_reference = by_rows(sets.held_out.rows)

    async def begin(self, model: RoleHandle, beside: Mapping[str, RoleHandle]) -> None:
        """Compute the reference's log-probs, by the policy that has not learned yet."""
        for reference in (self._reference, self._held_out_reference):
            if reference is not None:
                await reference.begin(model)

    async def update(self, rows: NDArray[np.int64], model: RoleHandle) -> Update:
        part = self.rows.select(rows)
        columns = self._weights(part)
        if self._reference is not None:
            columns["ref_logprobs"] = await self._reference.of(rows, model)
        if self._needs_matches or self._wpo:
            logprobs = await logprobs_of(part, model.logprobs, self._eval_batch_size)
            columns |= await self._by_the_policy(part, logprobs, columns, model)
        return Update(batch=TrainBatch(trajectories=part, columns=columns))

    def _weights(self, rows: TrajectoryColumns) -> dict[str, NDArray[np.float32]]:
        if self._ld_alpha == 1.0:
            return {}
        return {ANSWER_WEIGHTS: length_weights(rows, self._ld_alpha)}

    async def _by_the_policy(
        self,
        rows: TrajectoryColumns,
        logprobs: NDArray[np.float32],
        columns: Mapping[str, NDArray[np.float32]],
        model: RoleHandle,
    ) -> dict[str, NDArray[np.float32]]:
        """Return the columns that follow from what the policy says of these answers now."""
        found = _matches(rows, logprobs, columns) if self._needs_matches else {}
        if self._wpo:

            async def squares(part: TrajectoryColumns) -> NDArray[np.float32]:
                return (await model.statistics(part, ("sum_pi_squared",)))["sum_pi_squared"]

            squared = await logprobs_of(rows, squares, self._eval_batch_size)
            found[PAIR_WEIGHTS] = pair_weights(rows, logprobs, squared)
        return found

    def seen(self, update: Update, outputs: ModelNumbers) -> Seen:
        """Return loss, margin and implicit rewards of each pair."""
        return seen_pairs(self._loss, update.batch, outputs.numbers)

    async def evaluate(self, model: RoleHandle) -> Evaluated | None:
        """Return the mean loss of the pairs held out, how often the chosen answer's implicit reward is the higher one,
        and by how much on average."""
        if self._held_out is None:
            return None
        held_out = self._held_out.rows
        logprobs = await logprobs_of(held_out, model.logprobs, self._eval_batch_size)
        columns = self._weights(held_out)
        if self._held_out_reference is not None:
            columns["ref_logprobs"] = await self._held_out_reference.of_all(model)
        columns |= await self._by_the_policy(held_out, logprobs, columns, model)
        batch = TrainBatch(trajectories=held_out, columns=columns)

        def metrics(rows: NDArray[np.int64]) -> Mapping[str, float]:
            chosen, rejected = (answers_of(batch, logprobs, rows[at::2]) for at in (0, 1))
            matched = MatchedPairs.of(chosen, rejected) if self._needs_matches else None
            result = self._loss(PreferenceInputs(chosen=chosen, rejected=rejected, matched=matched))
            losses = weighted_losses(batch, result.loss, rows[0::2])  # (P,)
            margins = result.chosen_rewards - result.rejected_rewards  # (P,)
            return {
                "loss": float(losses.mean()),
                "accuracy": float((margins > 0).double().mean()),
                "margin": float(margins.mean()),
            }

        return evaluated(
            self._held_out, metrics, Update(batch=batch), ModelNumbers(numbers=logprobs)
        )


def _matches(
    rows: TrajectoryColumns,
    logprobs: NDArray[np.float32],
    columns: Mapping[str, NDArray[np.float32]],
) -> dict[str, NDArray[np.float32]]:
    """Return ``matched_columns`` of answers with these columns."""
    weights = columns.get(ANSWER_WEIGHTS, np.float32(1.0))
    return matched_columns(rows, weights * logprobs, weights * columns["ref_logprobs"])


def _load(resolved: ResolvedOptions[Any]) -> PreferredAnswers | JudgedAnswers:
    run: DpoOptions = resolved.run
    losses = losses_of(resolved.selections)
    needs = frozenset[str]().union(*(loss.needs for loss in losses))
    loss = PreferenceSum(
        [
            WeightedPreferenceLoss(
                name=each.registered.name,
                loss=each.build(),
                weight=weight_of(each, run),
            )
            for each in losses
        ]
    )
    has_reference = "ref_logprobs" in needs
    has_adapter = resolved.optional("actor.adapter") is not None
    follows = run.ref.sync_every is not None
    reads_answers = is_single(losses[0])
    sets = load_sets(resolved, preference_loader(resolved))
    if reads_answers:
        return JudgedAnswers(
            sets,
            loss,
            has_reference=has_reference,
            has_adapter=has_adapter,
            follows=follows,
            needs_kl="mismatched_kl" in needs,
            eval_batch_size=run.eval.batch_size,
            max_length=run.data.max_length,
        )
    return PreferredAnswers(
        sets,
        loss,
        has_reference=has_reference,
        needs_matches="matched_pairs" in needs,
        has_adapter=has_adapter,
        follows=follows,
        eval_batch_size=run.eval.batch_size,
        ld_alpha=run.preference.ld_alpha,
        wpo=run.preference.wpo,
    )


def _trained(resolved: ResolvedOptions[Any]) -> TrainedModel:
    preference = resolved.run.preference
    terms = resolved.selections["preference.terms.use"]
    objective = PreferenceObjective(
        loss=resolved.one("preference.loss").ref("rlhf_preference_losses"),
        weight=preference.weight,
        terms=tuple(
            PreferenceTerm(
                loss=term.ref("rlhf_preference_losses"), weight=weight_of(term, resolved.run)
            )
            for term in terms
        ),
        nll_coef=preference.nll_coef,
    )
    needs_reference = any("ref_logprobs" in loss.needs for loss in losses_of(resolved.selections))
    return TrainedModel(
        objective=objective,
        reference=resolved.run.ref if needs_reference else ReferenceSync(),
    )


run = run_of(_load, _trained, METRICS, binding=("preference",))

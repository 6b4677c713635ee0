"""The policy's loss on the rollouts of one micro-batch, and on its supervised rows.

Axes: ``B`` rows, ``A`` actions of the longest row, ``M`` actions of all rows, ``K`` tokens of the teacher. The parts of
all micro-batches add up to the loss of the whole step, because every normalizer is a total over the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from ..batch.metric import Metric, Metrics, loss_metric, mean_metric
from ..called import Checked, name_taken
from ..capabilities import APPLIES_IS_WEIGHTS, NO_ADVANTAGES
from ..component import ComponentRef
from ..contracts.backend import LossTerm, Normalizers, PolicyObjective, StepPlan
from ..contracts.correction import Correction, IsCorrection
from ..contracts.functions.kl import KlEstimator
from ..contracts.loss import LossInputs, PolicyLoss, TokenLoss
from ..math import kl_estimate, unbiased_kl
from ..plugins import Plugins
from .columns import (
    OFF_POLICY_TOKENS,
    TEACHER_TOP_LOGPROBS,
    TRAINED_TOKENS,
    ActionColumns,
    ActionGrid,
    ActionScores,
    corrected,
    reduced,
    rows_of,
    trained_part,
)

Part: TypeAlias = tuple[Float[Tensor, ""], Metrics]
"""A micro-batch's part of the step's loss, and the metrics of the part."""
RecordLosses: TypeAlias = Callable[[Tensor, Tensor], None]
"""``record(losses, clipped)``, (M,) each: ``StepOutcome.losses`` and ``StepOutcome.clipped`` of a micro-batch."""
LOGGED = {"loss/policy", "loss/kl", "loss/entropy", "kl/ref", "policy/entropy", "policy/approx_kl"}
LOGGED |= {OFF_POLICY_TOKENS, TRAINED_TOKENS}  # where some actions are left out
"""Metrics of the objective itself, beside one for each term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltTerm:
    """A further loss beside the policy loss."""

    term: LossTerm
    name: str
    """Name of the loss's component, under which the term is logged."""
    loss: PolicyLoss
    needs_advantages: bool = True
    """False: it teaches the same whatever the rewards are, so that rows whose rewards do not count train it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyComponents:
    """A ``PolicyObjective`` with its policy loss, its correction, its KL estimator and the losses of its terms."""

    objective: PolicyObjective
    loss: PolicyLoss
    correction: IsCorrection | None
    """None: the losses of the rollouts are not weighted."""
    applies_is_weights: bool
    """True: the policy loss multiplies itself by the correction's weights."""
    wants_entropy: bool
    """True: some loss reads the entropy."""
    wants_mean_logprobs: bool = False
    """True: some loss reads the mean log-prob over the vocabulary."""
    kl_estimator: KlEstimator | None = None
    """None: no KL term in the loss."""
    terms: tuple[BuiltTerm, ...] = ()

    @classmethod
    def build(cls, objective: PolicyObjective, plugins: Plugins) -> PolicyComponents:
        """Build the components that the objective names.

        Raises:
            PluginError: a component cannot be imported or built, or a term would be logged as the policy loss is.
            UnknownComponent: no plugin provides a component of that name.
        """
        component = plugins.get(objective.loss.kind, objective.loss.name).component
        further = [plugins.get(term.loss.kind, term.loss.name) for term in objective.terms]
        for one in further:
            if f"loss/{one.name}" in LOGGED:
                raise name_taken(one.label, f"loss/{one.name}")
        taken = LOGGED.union(f"loss/{one.name}" for one in further)

        def built(ref: ComponentRef, expected: type) -> Any:
            who = plugins.get(ref.kind, ref.name).label
            return Checked(plugins.build(ref), expected, who, taken=taken)

        losses = [objective.loss, *(term.loss for term in objective.terms)]
        needs = frozenset[str]().union(*(_needs(loss, plugins) for loss in losses))
        return cls(
            objective=objective,
            loss=built(objective.loss, TokenLoss),
            correction=built(objective.correction, Correction) if objective.correction else None,
            applies_is_weights=APPLIES_IS_WEIGHTS in component.provides,
            wants_entropy="entropy" in needs,
            wants_mean_logprobs="mean_logprobs" in needs,
            kl_estimator=built(objective.kl_estimator, Tensor) if objective.kl_estimator else None,
            terms=tuple(
                BuiltTerm(
                    term=term,
                    name=one.name,
                    loss=built(term.loss, TokenLoss),
                    needs_advantages=NO_ADVANTAGES not in one.component.provides,
                )
                for term, one in zip(objective.terms, further, strict=True)
            ),
        )

    def terms_on(self, rows: Literal["rollouts", "supervised"]) -> Iterator[BuiltTerm]:
        """Yield the terms that are computed on these rows."""
        return (built for built in self.terms if built.term.rows == rows)


def _needs(loss: ComponentRef, plugins: Plugins) -> frozenset[str]:
    registered = plugins.get(loss.kind, loss.name)
    options = registered.validate(loss.options)
    return registered.component.needs | options.needed_by_options()


@dataclass(frozen=True, slots=True)
class BuiltPolicyObjective:
    """The policy's objective, with its components built.

    Both methods return this micro-batch's part of the step's loss and the metrics of the part. A backend calls
    ``backward`` on every part, so that the gradients add up to the step's, and merges the metrics with
    ``read_metrics``. It does not divide, weight or clip a part: all totals are in the plan already.
    """

    components: PolicyComponents
    rows_per_unit: int = 1

    def rollouts(
        self,
        scores: ActionScores,
        columns: ActionColumns,
        plan: StepPlan,
        record: RecordLosses | None = None,
    ) -> Part:
        """Return the part of rows of ``TrainBatch.trajectories``; see ``policy_objective``."""
        return policy_objective(self.components, scores, columns, plan, record)

    def supervised(self, scores: ActionScores, grid: ActionGrid, totals: Normalizers) -> Part:
        """Return the part of rows of ``TrainBatch.supervised``; see ``supervised_objective``."""
        return supervised_objective(self.components, scores, grid, totals)


def policy_objective(
    components: PolicyComponents,
    scores: ActionScores,
    columns: ActionColumns,
    plan: StepPlan,
    record: RecordLosses | None = None,
) -> Part:
    """Return this micro-batch's part of the step's loss, to be minimized, and its metrics.

    ``loss = sum n_t (w_t keep_t m_t l_t + kl_coef KL_t - entropy_coef H_t) + sum over terms j of weight_j sum n_jt
    l_jt``, with the inner sums over the action tokens t, the policy loss ``l``, the terms' losses ``l_j``, the
    correction's ``w`` and ``keep`` (1 without a correction; a policy loss that applies ``w`` itself is not multiplied
    again), ``m`` 0 at the actions that the policy loss leaves out (``trained_part``) and 1 elsewhere, the estimate
    ``KL`` of the divergence from the reference, and the entropy ``H``. The weight ``n_t`` of a token is that of the
    aggregation: ``1 / num_actions``, ``1 / (num_sequences * actions of its episode)`` or ``1 / (num_sequences *
    max_actions)``, with the totals of ``plan.normalizers``; ``n_jt`` that of the term's own. Sequences are episodes:
    one of several rows weighs as much as one of a single row.

    Where the rewards of some rows do not count (``JUDGED``), the policy loss and the terms that need advantages are
    summed over the other rows, and divided by their totals. The KL, the entropy and the terms that need none are of all
    rows, divided by ``plan.sampled_normalizers``: they are what they would be if all rewards counted.

    Args:
        scores: the policy's results (M,), with gradients.
        columns: ``advantages``; ``old_logprobs`` unless the plan is on-policy, since then the old log-probs are the
            policy's own and the ratio is exactly 1; and whatever else the components read.
        record: gets the policy loss of each action.

    Raises:
        PluginError: a column is missing, or a component answered something of another type.
    """
    # All components see rows (B, A). On-policy the old log-probs are these ones, so that the ratio is exactly 1.
    objective, mask = components.objective, columns.grid.mask
    totals, weights = plan.sampled_normalizers or plan.normalizers, columns.row_weights  # (B,)
    policy = columns.grid.pad(scores.logprobs)  # (B, A)
    entropy = columns.grid.pad(scores.entropies)  # (B, A)
    old = policy.detach() if plan.on_policy else columns.padded("old_logprobs")
    correction = _correction(components, policy, columns, plan)
    inputs = _loss_inputs(
        components,
        scores,
        columns,
        correction,
        policy_logprobs=policy,
        old_logprobs=old,
        entropy=entropy,
    )
    # What rows train by their rewards.
    loss, metrics = _judged_part(components, inputs, correction, columns, plan, record)
    if correction is not None:
        metrics = correction.metrics | metrics
    # What all rows train, whether their rewards count or not: KL, entropy, and terms without advantages.
    if components.kl_estimator is not None:
        kl = _kl_to_reference(components, policy, old, columns)
        part = reduced(kl, mask, objective.aggregation, totals, weights)
        loss = loss + plan.kl_coef * part
        metrics |= {"loss/kl": loss_metric(part), "kl/ref": mean_metric(kl.detach(), mask)}
    if objective.entropy_bonus:
        bonus = reduced(entropy, mask, objective.aggregation, totals, weights)
        loss = loss - plan.entropy_coef * bonus
        metrics["loss/entropy"] = loss_metric(bonus)
    terms = [one for one in components.terms_on("rollouts") if not one.needs_advantages]
    loss, metrics = _with_terms((loss, metrics), terms, inputs, totals, weights)
    # What every run is judged by, whatever it trains.
    log_ratio = policy.detach() - old  # (B, A)
    metrics["policy/entropy"] = mean_metric(entropy.detach(), mask)
    metrics["policy/approx_kl"] = mean_metric(torch.expm1(log_ratio) - log_ratio, mask)
    return loss, metrics


def supervised_objective(
    components: PolicyComponents, scores: ActionScores, grid: ActionGrid, totals: Normalizers
) -> Part:
    """Return this micro-batch's part of the terms on supervised rows, and its metrics.

    ``loss = sum over terms j of weight_j sum n_jt l_jt``, with the inner sum over the tokens t to imitate. Their
    advantage is 1 and their old log-probs are the policy's own. The weight ``n_jt`` is that of the term's aggregation,
    as in ``policy_objective``.

    Args:
        scores: the policy's results (M,) for the tokens to imitate, with gradients.
        totals: totals of all supervised rows of the step, all ranks included (``StepPlan.supervised_normalizers``).
    """
    policy = grid.pad(scores.logprobs)  # (B, A)
    inputs = LossInputs(
        policy_logprobs=policy,
        old_logprobs=policy.detach(),
        advantages=torch.ones_like(policy),
        action_mask=grid.mask,
        entropy=grid.pad(scores.entropies).detach(),
        mean_logprobs=None if scores.mean_logprobs is None else grid.pad(scores.mean_logprobs),
    )
    nothing = (policy.new_zeros(()), dict[str, Metric]())
    return _with_terms(nothing, components.terms_on("supervised"), inputs, totals, None)


def _judged_part(
    components: PolicyComponents,
    inputs: LossInputs,
    correction: Correction | None,
    columns: ActionColumns,
    plan: StepPlan,
    record: RecordLosses | None,
) -> Part:
    """Return the policy loss and the terms that need advantages, of the rows whose rewards count, and their metrics."""
    rows, weights, totals = columns.judged_rows, columns.row_weights, plan.normalizers
    if rows is not None:
        if not len(rows):
            none = inputs.policy_logprobs.new_zeros(())
            if record is not None:
                unknown = none.new_full((columns.grid.index.numel(),), torch.nan)
                record(unknown, unknown)
            return none, {"loss/policy": loss_metric(none)}
        inputs = rows_of(inputs, rows)
        correction = None if correction is None else rows_of(correction, rows)
        weights = None if weights is None else weights[rows]
    result = components.loss(inputs)
    token_loss = corrected(result.loss, correction, weighted=components.applies_is_weights)
    max_log_ratio = components.objective.off_policy_mask
    token_loss, left_out = trained_part(token_loss, inputs, columns, max_log_ratio)
    if record is not None:
        _record_losses(record, result.loss, token_loss, inputs, columns)
    aggregation = components.objective.aggregation
    loss = reduced(token_loss, inputs.action_mask, aggregation, totals, weights)
    metrics = {**result.metrics, **left_out, "loss/policy": loss_metric(loss)}
    terms = [one for one in components.terms_on("rollouts") if one.needs_advantages]
    return _with_terms((loss, metrics), terms, inputs, totals, weights)


def _record_losses(
    record: RecordLosses,
    own: Float[Tensor, "j a"],
    token_loss: Float[Tensor, "j a"],
    inputs: LossInputs,
    columns: ActionColumns,
) -> None:
    """Tell the loss of each action, and by its derivative where a bound stopped it. That is one of the loss by the
    log-probs alone, which goes through no layer of the model.

    Args:
        own: losses before the correction, whose zeros are no bounds.
        inputs: those of the rows whose rewards count.
    """
    mask, rows = columns.grid.mask, columns.judged_rows
    policy, advantages = inputs.policy_logprobs, inputs.advantages
    slope = None
    if own.requires_grad:
        counted = torch.where(inputs.action_mask, own, 0.0).sum()
        (slope,) = torch.autograd.grad(counted, policy, retain_graph=True, allow_unused=True)
    sign = advantages.sign() if slope is None else torch.where(slope == 0, advantages.sign(), 0.0)
    found = [token_loss.detach(), torch.full_like(sign, torch.nan) if slope is None else sign]
    if rows is not None:
        none = policy.new_full(mask.shape, torch.nan)
        found = [none.index_copy(0, rows, column.to(none.dtype)) for column in found]
    record(*(column.flatten()[columns.grid.index] for column in found))


def _with_terms(
    part: Part,
    terms: Iterable[BuiltTerm],
    inputs: LossInputs,
    totals: Normalizers,
    weights: Float[Tensor, " b"] | None,
) -> Part:
    """Return the part with those of the terms, each with its weight; it is logged as it is, without the weight."""
    loss, metrics = part
    for built in terms:
        outcome, term = built.loss(inputs), built.term
        own = reduced(outcome.loss, inputs.action_mask, term.aggregation, totals, weights)
        loss = loss + term.weight * own
        metrics = metrics | outcome.metrics | {f"loss/{built.name}": loss_metric(own)}
    return loss, metrics


def _correction(
    components: PolicyComponents,
    policy: Float[Tensor, "b a"],
    columns: ActionColumns,
    plan: StepPlan,
) -> Correction | None:
    """Return the weights between the sampler's policy and the old one, if the run corrects.

    The old log-probs are those of the batch, also on-policy where it has them: under an adapter's dropout the update's
    own are not what the sampler's are to be compared with.
    """
    if components.correction is None:
        return None
    old = columns.optional("old_logprobs") if plan.on_policy else columns.padded("old_logprobs")
    if old is None:
        old = policy.detach()
    return components.correction(old, columns.padded("rollout_logprobs"), columns.grid.mask)


def _loss_inputs(
    components: PolicyComponents,
    scores: ActionScores,
    columns: ActionColumns,
    correction: Correction | None,
    *,
    policy_logprobs: Float[Tensor, "b a"],
    old_logprobs: Float[Tensor, "b a"],
    entropy: Float[Tensor, "b a"],
) -> LossInputs:
    """Return the inputs of the losses on rollouts; fields that no component of the run needs are None."""
    pad = columns.grid.pad
    return LossInputs(
        policy_logprobs=policy_logprobs,
        old_logprobs=old_logprobs,
        advantages=columns.padded("advantages"),
        action_mask=columns.grid.mask,
        rollout_logprobs=columns.optional("rollout_logprobs"),
        ref_logprobs=columns.optional("ref_logprobs"),
        is_weights=correction.weights if correction is not None else None,
        entropy=entropy.detach() if components.wants_entropy else None,
        teacher_logprobs=columns.optional("teacher_logprobs"),
        teacher_top_logprobs=columns.optional(TEACHER_TOP_LOGPROBS),  # (B, A, K)
        policy_top_logprobs=pad(scores.others) if scores.others is not None else None,  # (B, A, K)
        mean_logprobs=None if scores.mean_logprobs is None else pad(scores.mean_logprobs),
        prepared=columns.prepared(),
    )


def _kl_to_reference(
    components: PolicyComponents,
    policy: Float[Tensor, "b a"],
    old: Float[Tensor, "b a"],
    columns: ActionColumns,
) -> Float[Tensor, "b a"]:
    """Return KL(policy || reference) per token, by the estimator that the objective names."""
    objective, estimator = components.objective, components.kl_estimator
    assert estimator is not None
    reference, mask = columns.padded("ref_logprobs"), columns.grid.mask  # (B, A)
    if objective.kl_unbiased_gradient:
        return unbiased_kl(policy, old, reference, estimator, mask)
    return kl_estimate(policy, reference, estimator, tail=objective.kl_tail, action_mask=mask)

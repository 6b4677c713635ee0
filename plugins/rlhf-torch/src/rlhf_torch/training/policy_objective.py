"""What the policy minimises on one micro-batch: action tokens only, right-padded to (b, A).

The parts of all micro-batches add up to the loss of the whole step, because every normaliser is a total over the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlhf_core.contracts import PREPARED, LossInputs, Metric, Metrics, Normalizers, StepPlan
from rlhf_core.math import kl_estimate, unbiased_kl

from ..heads.action_head import ActionScores
from ..rows.packed_rows import ActionGrid
from .action_columns import ActionColumns, mean_metric, reduced
from .policy_terms import PolicyTerms


@dataclass(slots=True)
class _Parts:
    """Terms of the loss and what to log of them."""

    total: Tensor
    metrics: Metrics = field(default_factory=dict)

    def add(self, name: str, term: Tensor, coef: float) -> None:
        self.total = self.total + coef * term
        self.metrics[name] = Metric(term.detach(), reduction="share")


def policy_objective(
    terms: PolicyTerms, scores: ActionScores, columns: ActionColumns, plan: StepPlan
) -> tuple[Tensor, Metrics]:
    """Return this micro-batch's part of: policy loss + kl_coef KL(policy || ref) - entropy_coef entropy + terms.

    Args:
        scores: of the policy, with gradients.
        columns: ``advantages``, and ``old_logprobs`` unless the plan is on-policy, then the old log-probs are the
            policy's own and the ratio is exactly 1.
    """
    mask, objective, totals = columns.grid.mask, terms.objective, plan.normalizers
    policy = columns.grid.pad(scores.logprobs)  # (b, A)
    old = policy.detach() if plan.on_policy else columns.padded("old_logprobs")
    metrics: Metrics = {}
    weights = keep = None
    if terms.correction is not None:
        correction = terms.correction(old, columns.padded("rollout_logprobs"), mask)
        weights, keep = correction.weights, correction.keep
        metrics |= correction.metrics
    inputs = loss_inputs(terms, scores, columns, policy=policy, old=old, weights=weights)
    result = terms.loss(inputs)
    token_loss = result.loss
    if keep is not None and weights is not None:
        if not terms.applies_is_weights:
            token_loss = token_loss * weights
        token_loss = torch.where(keep, token_loss, 0.0)
    parts = _Parts(reduced(token_loss, mask, objective.aggregation, totals))
    parts.metrics["loss/policy"] = Metric(parts.total.detach(), reduction="share")
    if objective.kl_estimator is not None:
        kl = _kl_to_reference(terms, policy, old, columns)
        parts.add("loss/kl", reduced(kl, mask, objective.aggregation, totals), plan.kl_coef)
        metrics["kl/ref"] = mean_metric(kl.detach(), mask)
    entropy = columns.grid.pad(scores.entropies)  # (b, A)
    if objective.entropy_bonus:
        bonus = reduced(entropy, mask, objective.aggregation, totals)
        parts.add("loss/entropy", bonus, -plan.entropy_coef)
    for built in terms.of("rollouts"):
        outcome = built.loss(inputs)
        value = reduced(outcome.loss, mask, built.term.aggregation, totals)
        parts.add(f"loss/{built.name}", value, built.term.weight)
        metrics |= outcome.metrics
    log_ratio = policy.detach() - old
    metrics["policy/entropy"] = mean_metric(entropy.detach(), mask)
    metrics["policy/approx_kl"] = mean_metric(torch.expm1(log_ratio) - log_ratio, mask)
    return parts.total, metrics | result.metrics | parts.metrics


def supervised_objective(
    terms: PolicyTerms, scores: ActionScores, grid: ActionGrid, normalizers: Normalizers
) -> tuple[Tensor, Metrics]:
    """Return this micro-batch's part of the terms on supervised rows; their tokens have the advantage 1."""
    policy = grid.pad(scores.logprobs)  # (b, A)
    inputs = LossInputs(
        policy_logprobs=policy,
        old_logprobs=policy.detach(),
        advantages=torch.ones_like(policy),
        action_mask=grid.mask,
        entropy=grid.pad(scores.entropies).detach(),
    )
    parts = _Parts(policy.new_zeros(()))
    metrics: Metrics = {}
    for built in terms.of("supervised"):
        outcome = built.loss(inputs)
        value = reduced(outcome.loss, grid.mask, built.term.aggregation, normalizers)
        parts.add(f"loss/{built.name}", value, built.term.weight)
        metrics |= outcome.metrics
    return parts.total, metrics | parts.metrics


def loss_inputs(
    terms: PolicyTerms,
    scores: ActionScores,
    columns: ActionColumns,
    *,
    policy: Tensor,
    old: Tensor,
    weights: Tensor | None,
) -> LossInputs:
    """Return what the losses of the rollout rows see: only what some component of the run asked for is there."""
    top = columns.optional("teacher_top_logprobs")
    return LossInputs(
        policy_logprobs=policy,
        old_logprobs=old,
        advantages=columns.padded("advantages"),
        action_mask=columns.grid.mask,
        rollout_logprobs=columns.optional("rollout_logprobs"),
        ref_logprobs=columns.optional("ref_logprobs"),
        is_weights=weights,
        entropy=columns.grid.pad(scores.entropies).detach() if terms.wants_entropy else None,
        teacher_logprobs=columns.optional("teacher_logprobs"),
        teacher_top_logprobs=top,
        policy_top_logprobs=columns.grid.pad(scores.others) if scores.others is not None else None,
        prepared={
            name.removeprefix(PREPARED): columns.padded(name)
            for name in columns.flat
            if name.startswith(PREPARED)
        },
    )


def _kl_to_reference(
    terms: PolicyTerms, policy: Tensor, old: Tensor, columns: ActionColumns
) -> Tensor:
    """(b, A)"""
    estimator = terms.objective.kl_estimator
    assert estimator is not None
    reference = columns.padded("ref_logprobs")
    if terms.objective.kl_unbiased_gradient:
        kl: Tensor = unbiased_kl(policy, old, reference, estimator, columns.grid.mask)
        return kl
    tail = terms.objective.kl_tail
    kl = kl_estimate(policy, reference, estimator, tail=tail, action_mask=columns.grid.mask)
    return kl

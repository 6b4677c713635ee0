"""What is minimised on one micro-batch: action tokens only, right-padded to (b, A).

The parts of all micro-batches add up to the loss of the whole step, because every normaliser is a total over the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlhf_core import PluginError
from rlhf_core.contracts import (
    Aggregation,
    IsCorrection,
    LossInputs,
    Metric,
    Metrics,
    PolicyLoss,
    PolicyObjective,
    StepPlan,
    ValueObjective,
)
from rlhf_core.math import aggregate, kl_estimate, value_loss
from rlhf_core.plugins import Plugins

from .packed_rows import ActionGrid

APPLIES_IS_WEIGHTS = "applies_is_weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionColumns:
    """The columns of one micro-batch's actions, (M,) each, and their place in (b, A)."""

    flat: Mapping[str, Tensor]
    grid: ActionGrid

    def padded(self, name: str) -> Tensor:
        """Return a column as (b, A).

        Raises:
            PluginError: the step came without it.
        """
        if name not in self.flat:
            raise PluginError(
                f"this objective needs the column {name!r}; the batch has {', '.join(sorted(self.flat)) or 'none'}. "
                "The component that reads it must list it in its needs."
            )
        return self.grid.pad(self.flat[name])

    def optional(self, name: str) -> Tensor | None:
        """Return a column as (b, A), or None."""
        return self.padded(name) if name in self.flat else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTerms:
    """The built parts of a ``PolicyObjective``."""

    objective: PolicyObjective
    loss: PolicyLoss
    correction: IsCorrection | None
    applies_is_weights: bool
    """The loss puts the correction's weights on itself."""
    wants_entropy: bool

    @classmethod
    def build(cls, objective: PolicyObjective, plugins: Plugins) -> PolicyTerms:
        """Build the components that the objective names."""
        component = plugins.get(objective.loss.kind, objective.loss.name).component
        correction = plugins.build(objective.correction) if objective.correction else None
        return cls(
            objective=objective,
            loss=plugins.build(objective.loss),
            correction=correction,
            applies_is_weights=APPLIES_IS_WEIGHTS in component.provides,
            wants_entropy="entropy" in component.needs,
        )


@dataclass(slots=True)
class _Parts:
    """Terms of the loss and what to log of them."""

    total: Tensor
    metrics: Metrics = field(default_factory=dict)

    def add(self, name: str, term: Tensor, coef: float) -> None:
        self.total = self.total + coef * term
        self.metrics[name] = Metric(term.detach(), reduction="sum")


def policy_objective(
    terms: PolicyTerms, logprobs: Tensor, entropies: Tensor, columns: ActionColumns, plan: StepPlan
) -> tuple[Tensor, Metrics]:
    """Return this micro-batch's part of: policy loss + kl_coef KL(policy || ref) - entropy_coef entropy.

    Args:
        logprobs: (M,) of the policy, with gradient.
        entropies: (M,); with gradient if the objective has an entropy coefficient.
        columns: ``advantages``, and ``old_logprobs`` unless the plan is on-policy, then the old log-probs are the
            policy's own and the ratio is exactly 1.
    """
    mask = columns.grid.mask  # (b, A)
    policy, entropy = columns.grid.pad(logprobs), columns.grid.pad(entropies)
    old = policy.detach() if plan.on_policy else columns.padded("old_logprobs")
    rollout, reference = columns.optional("rollout_logprobs"), columns.optional("ref_logprobs")
    metrics: Metrics = {}
    weights = keep = None
    if terms.correction is not None:
        correction = terms.correction(old, columns.padded("rollout_logprobs"), mask)
        weights, keep = correction.weights, correction.keep
        metrics |= correction.metrics
    result = terms.loss(
        LossInputs(
            policy_logprobs=policy,
            old_logprobs=old,
            advantages=columns.padded("advantages"),
            action_mask=mask,
            rollout_logprobs=rollout,
            ref_logprobs=reference,
            is_weights=weights,
            entropy=entropy.detach() if terms.wants_entropy else None,
        )
    )
    token_loss = result.loss
    if keep is not None and weights is not None:
        if not terms.applies_is_weights:
            token_loss = token_loss * weights
        token_loss = torch.where(keep, token_loss, 0.0)
    parts = _Parts(_reduced(token_loss, mask, terms.objective.aggregation, plan))
    parts.metrics["loss/policy"] = Metric(parts.total.detach(), reduction="sum")
    if terms.objective.kl_estimator is not None:
        kl = kl_estimate(policy, columns.padded("ref_logprobs"), terms.objective.kl_estimator)
        parts.add("loss/kl", _reduced(kl, mask, terms.objective.aggregation, plan), plan.kl_coef)
        metrics["kl/ref"] = _mean(kl.detach(), mask)
    if terms.objective.entropy_coef:
        bonus = _reduced(entropy, mask, terms.objective.aggregation, plan)
        parts.add("loss/entropy", bonus, -terms.objective.entropy_coef)
    log_ratio = policy.detach() - old
    metrics["policy/entropy"] = _mean(entropy.detach(), mask)
    metrics["policy/approx_kl"] = _mean(torch.expm1(log_ratio) - log_ratio, mask)
    if plan.on_policy and rollout is not None:
        metrics |= _mismatch(policy.detach() - rollout, mask)
    return parts.total, result.metrics | metrics | parts.metrics


def _mismatch(difference: Tensor, mask: Tensor) -> Metrics:
    """How far the trainer's log-probs are from the sampler's before any update: what the two compute differently."""
    size = torch.where(mask, difference.abs(), 0.0)  # (b, A)
    return {
        "rollout/logprob_diff_mean": Metric(size.sum(), mask.sum()),
        "rollout/logprob_diff_max": Metric(size.max(), reduction="max"),
    }


def value_objective(
    objective: ValueObjective, values: Tensor, columns: ActionColumns, plan: StepPlan
) -> tuple[Tensor, Metrics]:
    """Return this micro-batch's part of the critic's loss; ``values`` (M,) have the gradient."""
    new, mask = columns.grid.pad(values), columns.grid.mask  # (b, A)
    old, returns = columns.padded("values"), columns.padded("returns")
    token_loss = value_loss(new, old, returns, objective.value_clip)
    total = _reduced(token_loss, mask, objective.aggregation, plan)
    return total, {
        "critic/loss": Metric(total.detach(), reduction="sum"),
        "critic/value_mean": _mean(new.detach(), mask),
        "critic/return_mean": _mean(returns, mask),
        "critic/abs_error": _mean((new.detach() - returns).abs(), mask),
    }


def _reduced(token_loss: Tensor, mask: Tensor, aggregation: Aggregation, plan: StepPlan) -> Tensor:
    totals = plan.normalizers
    scalar: Tensor = aggregate(
        token_loss,
        mask,
        aggregation,
        num_actions=totals.num_actions,
        num_sequences=totals.num_sequences,
        max_actions=totals.max_actions,
    )
    return scalar


def _mean(values: Tensor, mask: Tensor) -> Metric:
    return Metric(torch.where(mask, values, 0.0).sum(), mask.sum())

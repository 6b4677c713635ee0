"""The policy's loss on the answers of one micro-batch, some of which were preferred.

Axes: ``B`` rows, ``A`` actions of the longest row, ``M`` actions of all rows. A row is an answer beside its prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from ..batch.metric import Metric, Metrics, loss_metric
from ..contracts.backend import StepPlan
from ..contracts.preference import (
    ANSWER_WEIGHTS,
    MATCHED,
    PAIR_WEIGHTS,
    AnswerLogprobs,
    MatchedPairs,
    PreferenceInputs,
    PreferenceLoss,
)
from ..errors import PluginError
from .columns import ActionColumns, ActionScores


def preference_objective(
    loss: PreferenceLoss,
    scores: ActionScores,
    columns: ActionColumns,
    plan: StepPlan,
    *,
    rows_per_unit: int,
    nll_coef: float,
) -> tuple[Float[Tensor, ""], Metrics]:
    """Return this micro-batch's part of the update's loss, to be minimized, and its metrics.

    ``loss = sum over units of w_u l_u / U + nll_coef * sum over chosen answers y of (-log p(y | x) / |y|) / C``, with
    the loss ``l`` of the component, the number ``U`` of units of the whole update, which is that of its rows divided by
    ``rows_per_unit``, and the number ``C`` of its chosen answers. With pairs C is U. The weight ``w`` is that of
    ``PAIR_WEIGHTS``, else 1.

    Args:
        scores: the policy's results (M,) for the answers' tokens, with gradients.
        columns: ``ref_logprobs``, and those of ``MatchedPairs``, where the component needs them; ``ANSWER_WEIGHTS``
            where log-probs of answers are weighted sums, and ``PAIR_WEIGHTS`` where the losses of pairs are.
        rows_per_unit: 2: rows are pairs, each in one micro-batch, the chosen answer first; 1: rows have no partner.
        nll_coef: has to be 0 where rows have no partner.

    Raises:
        PluginError: a column is missing, or the batch does not say which answers were chosen.
    """
    if columns.rewards is None:
        problem = "a preference loss needs the rewards of the rows: 1 chosen, 0 rejected"
        raise PluginError(problem, code="plugin/no-rewards")
    # On the host, which knows the sizes without waiting for the device.
    chosen = columns.rewards > 0.5  # (B,)
    mask, weights = columns.grid.mask, columns.optional(ANSWER_WEIGHTS)
    logprobs = columns.grid.pad(scores.logprobs)  # (B, A)
    policy = _sums(logprobs, mask, weights)  # (B,)
    inputs = _inputs(policy, columns, chosen, plan)
    result = loss(inputs)
    units = plan.normalizers.num_sequences / rows_per_unit
    losses, of_pairs = result.loss, columns.optional(PAIR_WEIGHTS)
    if of_pairs is not None:
        of_pairs = of_pairs[chosen.nonzero()[:, 0].to(of_pairs.device), 0]  # (P,)
        losses = losses * of_pairs
    total = losses.sum() / units
    parts: Metrics = {"loss/preference": loss_metric(total)}
    # Without weights: each token of an answer is to become likelier.
    whole = policy if weights is None else _sums(logprobs, mask, None)  # (B,)
    rows = chosen.nonzero()[:, 0].to(policy.device)
    nll = -whole[rows] / inputs.chosen.num_tokens  # (C,), nats a token
    if nll_coef:
        part = nll.sum() / units
        total, parts["loss/nll"] = total + nll_coef * part, loss_metric(part)
    metrics: Metrics = {
        "preference/chosen_nll": _mean(nll.detach()),
        "preference/chosen_reward": _mean(result.chosen_rewards),
        "preference/rejected_reward": _mean(result.rejected_rewards),
    }
    if rows_per_unit == 2:
        margins = result.chosen_rewards - result.rejected_rewards  # (P,)
        metrics["preference/margin"] = _mean(margins)
        metrics["preference/accuracy"] = _mean((margins > 0).to(margins.dtype))
    if of_pairs is not None:
        metrics["preference/pair_weight"] = _mean(of_pairs)
    return total, metrics | result.metrics | parts


def _inputs(
    policy: Float[Tensor, " b"],
    columns: ActionColumns,
    chosen: Bool[Tensor, " b"],
    plan: StepPlan,
) -> PreferenceInputs:
    """Return what the loss looks at, given the log-prob of each answer under the policy."""
    mask, reference = columns.grid.mask, columns.optional("ref_logprobs")
    sums = None
    if reference is not None:
        sums = _sums(reference, mask, columns.optional(ANSWER_WEIGHTS))  # (B,)
    lengths = mask.sum(dim=1)  # (B,)

    def answers(kind: Bool[Tensor, " b"]) -> AnswerLogprobs:
        rows = kind.nonzero()[:, 0].to(policy.device)
        return AnswerLogprobs(
            policy=policy[rows],
            reference=None if sums is None else sums[rows],
            num_tokens=lengths[rows],
        )

    mismatched_kl = None
    if plan.mismatched_kl is not None:
        mismatched_kl = policy.new_tensor(plan.mismatched_kl)
    has_matches = any(name.startswith(MATCHED) for name in columns.flat)
    return PreferenceInputs(
        chosen=answers(chosen),
        rejected=answers(~chosen),
        mismatched_kl=mismatched_kl,
        matched=_matched(columns.padded, chosen) if has_matches else None,
    )


def _matched(
    padded: Callable[[str], Shaped[Tensor, "b a"]], chosen: Bool[Tensor, " b"]
) -> MatchedPairs:
    """Return what is matched with each pair, by the columns of the batch as rows."""
    rows = chosen.nonzero()[:, 0]
    found = {field.name: padded(MATCHED + field.name) for field in fields(MatchedPairs)}
    return MatchedPairs(
        **{name: column[rows.to(column.device), 0] for name, column in found.items()}  # (P,)
    )


def _sums(
    logprobs: Float[Tensor, "b a"],
    mask: Bool[Tensor, "b a"],
    weights: Float[Tensor, "b a"] | None,
) -> Float[Tensor, " b"]:
    """Return the log-prob of each row's whole answer; None: all weights are 1."""
    if weights is not None:
        logprobs = logprobs * weights
    return torch.where(mask, logprobs, 0.0).sum(dim=1)


def _mean(values: Float[Tensor, " n"]) -> Metric:
    return Metric(values.sum(), len(values))

"""Micro-batches for the checks of policy losses and corrections.

A step is made once, in float64, and cut afterwards, so that parts and whole hold the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rlhf_core.capabilities import APPLIES_IS_WEIGHTS, PREPARES_STEP
from rlhf_core.contracts.backend import PREPARED
from rlhf_core.contracts.loss import LossInputs, StepColumns, TokenLoss

LENGTHS = (4, 1, 6, 3, 2)
"""Number of action tokens of each row of a step."""
TOP_K = 3

_ON_DEMAND = {
    "rollout_logprobs": "rollout_logprobs",
    "ref_logprobs": "ref_logprobs",
    "entropy": "entropy",
    "teacher_logprobs": "teacher_logprobs",
    "teacher_top_k": "teacher_top_logprobs",
}
"""Column of ``LossInputs`` that comes with each need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCase:
    """Columns of one optimizer step."""

    action_mask: Tensor
    columns: Mapping[str, Tensor]
    """Columns (B, A) and (B, A, K) by name, float64; padding may hold any number."""

    def with_columns(self, **columns: Tensor) -> LossCase:
        """Return the step with some columns replaced."""
        return replace(self, columns={**self.columns, **columns})

    def rows(self, index: Sequence[int]) -> LossCase:
        """Return some rows, cut to the longest of them."""
        rows = list(index)
        width = int(self.action_mask[rows].sum(dim=1).max())
        return LossCase(
            action_mask=self.action_mask[rows, :width],
            columns={name: column[rows][:, :width] for name, column in self.columns.items()},
        )

    def padded(self, columns: int, padding: float) -> LossCase:
        """Return the step with more padding, and with the number ``padding`` at all padding."""
        mask = torch.nn.functional.pad(self.action_mask, (0, columns))

        def wider(column: Tensor) -> Tensor:
            extra = (0, 0, 0, columns) if column.dim() == 3 else (0, columns)
            wide = torch.nn.functional.pad(column, extra)
            return torch.where(mask if column.dim() == 2 else mask[:, :, None], wide, padding)

        columns_ = {name: wider(column) for name, column in self.columns.items()}
        return LossCase(action_mask=mask, columns=columns_)


def loss_case(
    lengths: Sequence[int] = LENGTHS,
    *,
    drift: float = 0.3,
    advantage: float = 1.0,
) -> LossCase:
    """Return a step in which the policies differ by up to ``drift`` nats per token.

    Args:
        lengths: action tokens of each row.
        drift: largest log-ratio between any two of policy, old, rollout, reference and teacher.
        advantage: largest absolute value of an advantage; both signs appear in every row with two tokens or more.
    """
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]  # (B, A)

    def drawn(low: float, high: float, *more: int) -> Tensor:
        unit = torch.rand(*mask.shape, *more, generator=generator, dtype=torch.float64)
        return low + (high - low) * unit

    old = drawn(-3.0, -0.2)
    half = drift / 2
    sign = torch.where(torch.arange(mask.shape[1]) % 2 == 0, 1.0, -1.0)
    size = drawn(0.2, 1.0)
    columns = {
        "old_logprobs": old,
        "policy_logprobs": old + drawn(-half, half),
        "rollout_logprobs": old + drawn(-half, half),
        "ref_logprobs": old + drawn(-half, half),
        "teacher_logprobs": old + drawn(-half, half),
        "advantages": advantage * size * sign,
        "entropy": drawn(0.1, 2.0),
        "is_weights": drawn(0.5, 1.5),
        "teacher_top_logprobs": _top(drawn(0.0, 2.0, TOP_K)),
        "policy_top_logprobs": _top(drawn(0.0, 2.0, TOP_K)).flip(-1),
    }
    columns["mean_logprobs"] = drawn(-6.0, -3.0)  # last: the draws before it stay what they were
    return LossCase(action_mask=mask, columns=columns)


def equal_policies(case: LossCase) -> LossCase:
    """Return the case with all log-probs equal: before any update, with an exact sampler."""
    old = case.columns["old_logprobs"]
    names = ("policy_logprobs", "rollout_logprobs", "ref_logprobs", "teacher_logprobs")
    top = case.columns["teacher_top_logprobs"]
    return case.with_columns(**dict.fromkeys(names, old), policy_top_logprobs=top)


def prepared(
    loss: Any, case: LossCase, provides: frozenset[str], needs: frozenset[str]
) -> LossCase:
    """Return the case with the columns that the loss prepares for the whole step, if it prepares any."""
    if PREPARES_STEP not in provides:
        return case

    def given(name: str) -> Tensor | None:
        return case.columns[name] if name in needs else None

    made = loss.prepare(
        StepColumns(
            advantages=case.columns["advantages"],
            action_mask=case.action_mask,
            old_logprobs=given("old_logprobs"),
            rollout_logprobs=given("rollout_logprobs"),
            seed=7,
        )
    )
    return case.with_columns(**{PREPARED + name: column for name, column in made.items()})


def loss_inputs(
    case: LossCase,
    needs: frozenset[str],
    provides: frozenset[str] = frozenset(),
    *,
    dtype: torch.dtype = torch.float32,
    gradient: bool = False,
) -> LossInputs:
    """Return the case as a loss gets it: the columns that the loss needs, and no others.

    Args:
        gradient: whether the policy's log-probs require a gradient.
    """

    def column(name: str) -> Tensor:
        return case.columns[name].to(dtype, copy=True)

    given = {field: column(field) for need, field in _ON_DEMAND.items() if need in needs}
    if APPLIES_IS_WEIGHTS in provides:
        given["is_weights"] = column("is_weights")
    policy = column("policy_logprobs").requires_grad_(gradient)
    if "mean_logprobs" in needs:
        given["mean_logprobs"] = column("mean_logprobs").requires_grad_(gradient)
    if "teacher_top_k" in needs:
        given["policy_top_logprobs"] = column("policy_top_logprobs").requires_grad_(gradient)
    made = {
        name.removeprefix(PREPARED): column(name)
        for name in case.columns
        if name.startswith(PREPARED)
    }
    return LossInputs(
        policy_logprobs=policy,
        old_logprobs=column("old_logprobs"),
        advantages=column("advantages"),
        action_mask=case.action_mask,
        prepared=made,
        **given,
    )


def total(result: TokenLoss, mask: Tensor) -> Tensor:
    """Return the sum of the loss over the action tokens, as the core takes it: padding is never read."""
    return torch.where(mask, result.loss, 0.0).sum()


def _top(scores: Tensor) -> Tensor:
    """Return log-probs of the most probable tokens, highest first; all other tokens have probability 0.2 together."""
    return (scores.log_softmax(-1) + torch.tensor(0.8).log()).sort(dim=-1, descending=True).values

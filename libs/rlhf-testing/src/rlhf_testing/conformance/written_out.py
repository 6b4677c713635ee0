"""The objective of a training step in its plainest form, to which the kit compares a backend's step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rlhf_core.contracts.backend import PolicyObjective, StepPlan

from .tiny_policy import KL_ESTIMATORS, MAX_ACTIONS, PlainModel, train_batch

MAX_KL = 10.0
"""Estimates are clamped from here on, see ``rlhf_core.math.kl_estimate``."""


def written_out(
    plain: PlainModel,
    objective: PolicyObjective,
    plan: StepPlan,
    *,
    temperature: float,
    rows_per_episode: Sequence[int] | None = None,
) -> Tensor:
    """Return the objective of ``train_batch()`` in its plainest form.

    Args:
        rows_per_episode: numbers of neighboring rows that are one episode; None: each row is one.
    """
    batch = train_batch()
    rows, columns = batch.trajectories, batch.columns
    outputs = plain.outputs(rows, temperature)
    advantages = torch.from_numpy(columns["advantages"])
    log_ratio = outputs.logprobs - torch.from_numpy(columns["ref_logprobs"])
    loss = -advantages * outputs.logprobs + plan.kl_coef * _written_out_kl(log_ratio, objective)
    loss = loss - plan.entropy_coef * outputs.entropies
    lengths = rows.num_actions
    if rows_per_episode is not None:
        lengths = np.add.reduceat(lengths, np.cumsum([0, *rows_per_episode[:-1]]))
    return _aggregated(loss, objective.aggregation, torch.from_numpy(lengths))


def _written_out_kl(log_ratio: Tensor, objective: PolicyObjective) -> Tensor:
    """The KL term, with the objective's tail."""
    (estimate,) = [
        estimator(log_ratio) for ref, estimator in KL_ESTIMATORS if ref == objective.kl_estimator
    ]
    return estimate.clamp(-MAX_KL, MAX_KL) if objective.kl_tail == "clamp" else estimate


def _aggregated(loss: Tensor, mode: str, lengths: Tensor) -> Tensor:
    if mode == "token-mean":
        return loss.mean()
    parts = loss.split(lengths.tolist())
    if mode == "seq-mean-token-mean":
        return torch.stack([part.mean() for part in parts]).mean()
    return torch.stack([part.sum() / MAX_ACTIONS for part in parts]).mean()

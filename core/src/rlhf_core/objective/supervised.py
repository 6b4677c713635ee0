"""The policy's loss on the supervised rows of one micro-batch."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..batch.metric import Metrics
from ..contracts.backend import Normalizers
from ..contracts.loss import LossInputs
from .columns import ActionGrid
from .policy import PolicyComponents
from .reduction import LossParts, reduced
from .scores import ActionScores


def supervised_objective(
    components: PolicyComponents, scores: ActionScores, grid: ActionGrid, totals: Normalizers
) -> tuple[Float[Tensor, ""], Metrics]:
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
    parts = LossParts(policy.new_zeros(()))
    metrics: Metrics = {}
    for built in components.terms_on("supervised"):
        outcome = built.loss(inputs)
        part = reduced(outcome.loss, grid.mask, built.term.aggregation, totals)
        parts.add(f"loss/{built.name}", part, built.term.weight)
        metrics |= outcome.metrics
    return parts.total, metrics | parts.metrics

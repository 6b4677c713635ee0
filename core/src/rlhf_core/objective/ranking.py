"""A reward model's loss on the pairs of one micro-batch.

Axes: ``B`` rows, ``M`` actions of all rows, ``P`` pairs. A row is an answer beside its prompt; the two answers of a
pair are neighbors.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from ..batch.metric import Metric, Metrics, loss_metric
from ..contracts.backend import RankingObjective, StepPlan
from ..errors import PluginError
from .columns import ActionColumns


def ranking_objective(
    objective: RankingObjective, scores: Float[Tensor, " m"], columns: ActionColumns, plan: StepPlan
) -> tuple[Float[Tensor, ""], Metrics]:
    """Return this micro-batch's part of the update's loss, to be minimized, and its metrics.

    ``loss = sum over pairs of (l(r_c, r_r) + center_coef (r_c + r_r)^2) / P``, with the number ``P`` of pairs of the
    whole update, and ``r`` the score of the sequence that ends with the answer's last token. Scores of the tokens
    before it have no effect.

    Args:
        scores: the model's scores (M,) at each action, with gradients.
        columns: margins where the pairs have some; only the loss ``sigmoid`` reads them.

    Raises:
        PluginError: the batch does not say which answers were chosen.
    """
    if columns.rewards is None:
        problem = "a ranking loss needs the rewards of the rows: 1 chosen, 0 rejected"
        raise PluginError(problem, code="plugin/no-rewards")
    # On the host, which knows the sizes without waiting for the device.
    is_chosen = columns.rewards > 0.5  # (B,)
    rows = [kind.nonzero()[:, 0].to(scores.device) for kind in (is_chosen, ~is_chosen)]
    chosen, rejected = (columns.grid.last(scores)[kind] for kind in rows)  # (P,)
    margin = None
    if columns.margins is not None and objective.loss == "sigmoid":
        margin = columns.margins[rows[0]]  # (P,)
    pairs = plan.normalizers.num_sequences / 2
    total = ranking_loss(chosen, rejected, margin).sum() / pairs
    parts: Metrics = {"loss/ranking": loss_metric(total)}
    if objective.center_coef:
        penalty = centering_penalty(chosen, rejected).sum() / pairs
        total, parts["loss/centering"] = (
            total + objective.center_coef * penalty,
            loss_metric(penalty),
        )
    difference = (chosen - rejected).detach()  # (P,)
    metrics: Metrics = {
        "ranking/accuracy": _mean((difference > 0).to(difference.dtype)),
        "ranking/margin": _mean(difference),
        "ranking/chosen_score": _mean(chosen.detach()),
        "ranking/rejected_score": _mean(rejected.detach()),
    }
    return total, metrics | parts


def ranking_loss(
    chosen: Float[Tensor, " p"],
    rejected: Float[Tensor, " p"],
    margin: Float[Tensor, " p"] | None = None,
) -> Float[Tensor, " p"]:
    """Return ``-log sigmoid(r_c - r_r - m)`` of each pair, in nats.

    In the model of Bradley and Terry this is minus the log-probability of the preference, with a difference of the
    scores that has to exceed the margin. Equal scores give log 2 without a margin, and the gradient by ``r_c`` is
    ``-sigmoid(m - (r_c - r_r))``. Large differences of either sign neither overflow nor lose digits.

    Args:
        chosen: r_c, scores of the preferred answers.
        rejected: r_r, scores of the others.
        margin: m, in units of the scores; None: 0. Then the loss is also ``log(1 + exp(r_r - r_c))``.

    Source: Ouyang et al. 2022, arXiv:2203.02155, section 3.5; the margin is that of Touvron et al. 2023 (Llama 2),
    arXiv:2307.09288, section 3.2.2. OpenRLHF's ``PairWiseLoss`` is the mean of it, and its ``LogExpLoss`` the mean
    without a margin.
    """
    difference = chosen - rejected  # (P,)
    if margin is not None:
        difference = difference - margin
    return softplus(-difference)


def centering_penalty(
    chosen: Float[Tensor, " p"], rejected: Float[Tensor, " p"]
) -> Float[Tensor, " p"]:
    """Return ``(r_c + r_r)^2`` of each pair, which draws the scores of a pair to a mean of 0.

    A ranking loss depends on differences alone: a constant added to all scores of a prompt would change nothing.

    Source: Eisenstein et al. 2023, arXiv:2312.09244; TRL's ``center_rewards_coefficient`` weights the mean of it.
    """
    return (chosen + rejected).square()


def _mean(values: Float[Tensor, " p"]) -> Metric:
    return Metric(values.sum(), len(values))

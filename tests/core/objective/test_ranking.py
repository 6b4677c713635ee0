"""A reward model's loss on pairs."""

import math

import numpy as np
import pytest
import torch

from rlhf_core import PluginError
from rlhf_core.batch.metric import merge_metrics, metric_values
from rlhf_core.contracts import Normalizers, RankingObjective, StepPlan
from rlhf_core.objective import (
    ActionColumns,
    ActionGrid,
    build_objective,
    centering_penalty,
    ranking_loss,
)
from rlhf_core.plugins import empty
from rlhf_testing.errors import has_code

LENGTHS = (2, 1, 3, 2)
"""Actions of the rows: chosen, rejected, chosen, rejected."""
PLAN = StepPlan(normalizers=Normalizers(num_actions=8, num_sequences=4, max_actions=9))


def pairs_of(*scores):
    return (torch.tensor(kind, dtype=torch.float64) for kind in scores)


@pytest.mark.parametrize(
    ("margin", "expected"),
    [
        # -log sigmoid(1) = 0.313262 and -log sigmoid(-0.5) = 0.974077.
        (None, [0.313262, 0.974077]),
        # Differences of 0.5 and -1: 0.474077 and 1.313262.
        ([0.5, 0.5], [0.474077, 1.313262]),
    ],
)
def test_the_loss_by_hand(margin, expected):
    """The means, 0.643669 and 0.893669, are also those of OpenRLHF 0.11.2."""
    chosen, rejected = pairs_of([1.0, 0.0], [0.0, 0.5])

    actual = ranking_loss(chosen, rejected, None if margin is None else torch.tensor(margin))

    torch.testing.assert_close(actual, torch.tensor(expected).double(), atol=1e-6, rtol=0)


def test_equal_scores_cost_log_2_and_pull_with_a_half():
    chosen, rejected = (scores.requires_grad_() for scores in pairs_of([3.0], [3.0]))

    loss = ranking_loss(chosen, rejected)
    loss.sum().backward()

    assert loss.item() == pytest.approx(math.log(2))
    assert (chosen.grad.item(), rejected.grad.item()) == (-0.5, 0.5)


@pytest.mark.parametrize("far", [200.0, -200.0, 1e30, -1e30])
def test_large_differences_neither_overflow_nor_lose_the_gradient(far):
    chosen = torch.tensor([far], requires_grad=True)

    loss = ranking_loss(chosen, torch.zeros(1))
    loss.sum().backward()

    assert loss.item() == pytest.approx(max(0.0, -far), rel=1e-6)
    assert chosen.grad.item() == (0.0 if far > 0 else -1.0)


def test_a_constant_that_is_added_to_both_scores_changes_the_centering_alone():
    chosen, rejected = pairs_of([1.0, -2.0], [0.5, 0.25])

    torch.testing.assert_close(
        ranking_loss(chosen + 7, rejected + 7), ranking_loss(chosen, rejected)
    )
    # (1 + 0.5)^2 = 2.25 and (-2 + 0.25)^2 = 3.0625.
    assert centering_penalty(chosen, rejected).tolist() == [2.25, 3.0625]
    # With 7 added to both: (15.5)^2 and (12.25)^2.
    assert centering_penalty(chosen + 7, rejected + 7).tolist() == [240.25, 150.0625]


@pytest.fixture
def scores():
    """One score for each action; the last of the rows are 1.5, -0.5, 0.25 and 2.0."""
    values = [9.0, 1.5, -0.5, 9.0, -9.0, 0.25, -9.0, 2.0]
    return torch.tensor(values, dtype=torch.float64).requires_grad_()


def columns_of(rows, *, rewards=(1.0, 0.0, 1.0, 0.0), margins=None):
    grid = ActionGrid.of(np.array(LENGTHS)[list(rows)], torch.device("cpu"))
    return ActionColumns(
        flat={},
        grid=grid,
        rewards=None if rewards is None else torch.tensor(rewards)[list(rows)],
        margins=None if margins is None else torch.tensor(margins)[list(rows)],
    )


def part(scores, rows, **columns):
    starts = np.cumsum([0, *LENGTHS])
    index = np.concatenate([np.arange(starts[r], starts[r + 1]) for r in rows])
    return scores[torch.from_numpy(index)], columns_of(rows, **columns), PLAN


def softplus(x):
    return math.log1p(math.exp(x))


@pytest.mark.parametrize("center_coef", [0.0, 0.3])
@pytest.mark.parametrize(("loss", "margin"), [("sigmoid", 0.5), ("log_exp", 0.0)])
def test_it_is_the_mean_over_pairs_of_the_scores_at_the_last_tokens(
    scores, loss, margin, center_coef
):
    """log_exp does not read the margins."""
    objective = build_objective(RankingObjective(loss=loss, center_coef=center_coef), empty())
    whole = part(scores, range(4), margins=(0.5, 0.5, 0.5, 0.5))

    total, metrics = objective.rollouts(*whole)
    total.backward()

    pairs = [(1.5, -0.5), (0.25, 2.0)]
    ranking = sum(softplus(margin - (c - r)) for c, r in pairs) / 2
    centering = sum((c + r) ** 2 for c, r in pairs) / 2
    assert total.item() == pytest.approx(ranking + center_coef * centering)
    values = metric_values(merge_metrics([metrics]))
    assert values["loss/ranking"] == pytest.approx(ranking)
    assert values.get("loss/centering") == (pytest.approx(centering) if center_coef else None)
    assert values["ranking/accuracy"] == 0.5
    assert values["ranking/margin"] == pytest.approx((2.0 - 1.75) / 2)
    assert values["ranking/chosen_score"] == pytest.approx((1.5 + 0.25) / 2)
    assert values["ranking/rejected_score"] == pytest.approx((-0.5 + 2.0) / 2)
    # d/dc = -sigmoid(m - (c - r)) / 2 + coef (c + r), of the last tokens alone.
    slopes = [0.0] * 8
    for place, (c, r) in zip(((1, 2), (5, 7)), pairs, strict=True):
        pull, center = 1 / (1 + math.exp(c - r - margin)) / 2, center_coef * (c + r)
        slopes[place[0]], slopes[place[1]] = center - pull, center + pull
    assert scores.grad.tolist() == pytest.approx(slopes)


def test_it_does_not_depend_on_the_micro_batches(scores):
    objective = build_objective(RankingObjective(center_coef=0.3), empty())
    margins = (0.5, 0.5, -1.0, -1.0)
    whole, metrics = objective.rollouts(*part(scores, range(4), margins=margins))
    (slope,) = torch.autograd.grad(whole, scores)

    parts = [objective.rollouts(*part(scores, rows, margins=margins)) for rows in ((0, 1), (2, 3))]

    total = sum(loss for loss, _ in parts)
    torch.testing.assert_close(total, whole)
    torch.testing.assert_close(torch.autograd.grad(total, scores)[0], slope)
    together = metric_values(merge_metrics([metrics for _, metrics in parts]))
    assert together == pytest.approx(metric_values(merge_metrics([metrics])))
    assert objective.rows_per_unit == 2


def test_chosen_and_rejected_are_told_by_their_reward(scores):
    objective = build_objective(RankingObjective(), empty())
    right, _ = objective.rollouts(*part(scores, range(4)))
    swapped, _ = objective.rollouts(*part(scores, range(4), rewards=(0.0, 1.0, 0.0, 1.0)))

    # softplus(x) - softplus(-x) = x for the differences 2.0 and -1.75.
    assert (swapped - right).item() == pytest.approx((2.0 - 1.75) / 2)


def test_rows_without_rewards_are_refused(scores):
    with pytest.raises(
        PluginError, match="needs the rewards of the rows", check=has_code("plugin/no-rewards")
    ):
        build_objective(RankingObjective(), empty()).rollouts(*part(scores, range(4), rewards=None))

"""A process reward model's loss on labeled steps."""

import math

import numpy as np
import pytest
import torch

from rlhf_core import PluginError
from rlhf_core.batch.metric import merge_metrics, metric_values
from rlhf_core.contracts import Normalizers, StepLabelObjective, StepPlan
from rlhf_core.objective import ActionColumns, ActionGrid, build_objective
from rlhf_core.plugins import empty
from rlhf_testing.errors import has_code

LENGTHS = (2, 1, 3)
LABELS = torch.tensor([1.0, 0.0, 1.0, 0.25, 1.0, 0.0])
PLAN = StepPlan(normalizers=Normalizers(num_actions=6, num_sequences=3, max_actions=9))


@pytest.fixture
def scores():
    values = [2.0, -1.0, 0.5, 0.0, -3.0, 1.0]
    return torch.tensor(values, dtype=torch.float64).requires_grad_()


def part(scores, rows, labels=LABELS):
    starts = np.cumsum([0, *LENGTHS])
    index = np.concatenate([np.arange(starts[r], starts[r + 1]) for r in rows])
    grid = ActionGrid.of(np.array(LENGTHS)[list(rows)], torch.device("cpu"))
    flat = {} if labels is None else {"labels": labels[torch.from_numpy(index)]}
    return scores[torch.from_numpy(index)], ActionColumns(flat=flat, grid=grid), PLAN


def objective():
    return build_objective(StepLabelObjective(), empty())


def test_it_is_the_mean_cross_entropy_over_steps(scores):
    loss, metrics = objective().rollouts(*part(scores, range(3)))
    loss.backward()

    expected, slopes = 0.0, []
    for score, label in zip(scores.tolist(), LABELS.tolist(), strict=True):
        good = 1 / (1 + math.exp(-score))
        expected -= (label * math.log(good) + (1 - label) * math.log(1 - good)) / 6
        slopes.append((good - label) / 6)
    assert loss.item() == pytest.approx(expected)
    assert scores.grad.tolist() == pytest.approx(slopes)
    values = metric_values(merge_metrics([metrics]))
    assert values["loss/steps"] == pytest.approx(expected)
    # Right are 2.0, -1.0, 0.5 and 0.0; wrong are -3.0 of a good step and 1.0 of a bad one.
    assert values["steps/accuracy"] == pytest.approx(4 / 6)
    assert values["steps/label"] == pytest.approx(3.25 / 6)
    assert values["train/steps_labeled"] == 6


def test_a_score_of_0_costs_log_2_whatever_the_label():
    loss, _ = objective().rollouts(*part(torch.zeros(6).double(), range(3)))

    assert loss.item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("far", [1000.0, -1000.0])
def test_large_scores_do_not_overflow(far):
    loss, _ = objective().rollouts(*part(torch.full((6,), far).double(), range(3)))

    # The wrong side of each label, a quarter or three quarters of a soft one.
    share = (LABELS if far < 0 else 1 - LABELS).sum().item() / 6
    assert loss.item() == pytest.approx(1000 * share)


def test_it_does_not_depend_on_the_micro_batches(scores):
    whole, metrics = objective().rollouts(*part(scores, range(3)))

    parts = [objective().rollouts(*part(scores, rows)) for rows in ((0,), (1, 2))]

    torch.testing.assert_close(sum(loss for loss, _ in parts), whole)
    together = metric_values(merge_metrics([metrics for _, metrics in parts]))
    assert together == pytest.approx(metric_values(merge_metrics([metrics])))


def test_steps_without_labels_are_refused(scores):
    with pytest.raises(
        PluginError, match="needs the column 'labels'", check=has_code("plugin/missing-column")
    ):
        objective().rollouts(*part(scores, range(3), labels=None))


def test_it_is_the_cross_entropy_of_two_label_tokens_whose_logits_differ_by_the_score(scores):
    """The loss of a model that predicts a label token; what it adds to both logits has no effect."""
    loss, _ = objective().rollouts(*part(scores, range(3)))

    shift = torch.tensor([3.0, -1.0, 0.0, 2.0, 5.0, -7.0]).double()
    logits = torch.stack([scores.detach() + shift, shift], dim=1)
    targets = torch.stack([LABELS, 1 - LABELS], dim=1).double()
    expected = torch.nn.functional.cross_entropy(logits, targets)
    torch.testing.assert_close(loss.detach(), expected)

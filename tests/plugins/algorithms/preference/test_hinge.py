"""The hinge loss."""

import pytest
import torch
from tests.plugins.algorithms.preference.answers import (
    answers,
    gradients_at_the_start,
    log_ratios,
    openrlhf_pairs,
)

from rlhf_core.contracts import PreferenceInputs, metric_values
from rlhf_plugin_algorithms.preference.hinge import HingeConfig, HingeLoss, hinge_loss


def test_pairs_by_hand():
    result = HingeLoss(HingeConfig(beta=0.1))(openrlhf_pairs())

    assert result.loss.tolist() == pytest.approx([0.9, 0.85])  # 1 - 0.1 * 1 and 1 - 0.1 * 1.5
    assert result.chosen_rewards.tolist() == pytest.approx([0.05, 0.05])
    assert result.rejected_rewards.tolist() == pytest.approx([-0.05, -0.1])


@pytest.mark.parametrize("beta", [0.01, 0.1, 2.0])
def test_each_pair_against_a_slow_loop(beta):
    chosen, rejected = log_ratios()

    actual = hinge_loss(chosen, rejected, beta=beta)

    for pair in range(len(chosen)):
        margin = beta * (chosen[pair].item() - rejected[pair].item())
        assert actual[pair].item() == pytest.approx(max(0.0, 1.0 - margin))


def test_a_pair_that_is_won_by_the_margin_has_no_gradient_and_is_counted():
    pairs = PreferenceInputs(
        chosen=answers([-1.0, -1.0, -1.0, -9.0], [-5.0, -12.0, -30.0, -4.0]),
        rejected=answers([-5.0] * 4, [-5.0] * 4),
    )

    result = HingeLoss(HingeConfig(beta=0.1))(pairs)
    result.loss.sum().backward()

    # Log-ratios 4, 11, 29 and -5 against a margin of 10 nats.
    assert result.loss.tolist() == pytest.approx([0.6, 0.0, 0.0, 1.5])
    assert pairs.chosen.policy.grad.tolist() == pytest.approx([-0.1, 0.0, 0.0, -0.1])
    assert metric_values(result.metrics) == {"hinge/fraction_without_gradient": 0.5}


def test_at_the_start_it_pulls_with_beta():
    assert gradients_at_the_start(HingeLoss(HingeConfig(beta=0.3))) == pytest.approx((-0.3, 0.3))


def test_gradients_are_right():
    assert torch.autograd.gradcheck(lambda c, r: hinge_loss(c, r, beta=0.1), log_ratios())

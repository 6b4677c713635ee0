"""APO-zero."""

import math

import pytest
import torch
from tests.plugins.algorithms.preference.answers import (
    gradients_at_the_start,
    log_ratios,
    openrlhf_pairs,
)

from rlhf_plugin_algorithms.preference.apo_zero import ApoZeroConfig, ApoZeroLoss, apo_zero_loss


def test_pairs_by_hand():
    result = ApoZeroLoss(ApoZeroConfig(beta=0.1))(openrlhf_pairs())

    # Log-ratios 0.5, 0.5 and -0.5, -1: 1 - 0.512497 + 0.487503, and 1 - 0.512497 + 0.475021.
    by_hand = torch.tensor([0.975005, 0.962523], dtype=torch.float64)
    torch.testing.assert_close(result.loss, by_hand, atol=1e-6, rtol=0)
    assert result.chosen_rewards.tolist() == pytest.approx([0.05, 0.05])
    assert result.rejected_rewards.tolist() == pytest.approx([-0.05, -0.1])


def test_each_pair_against_a_slow_loop():
    chosen, rejected = log_ratios()

    actual = apo_zero_loss(chosen, rejected, beta=0.1)

    for pair in range(len(chosen)):
        likelier, rarer = (
            1 / (1 + math.exp(-0.1 * part[pair].item())) for part in (chosen, rejected)
        )
        assert actual[pair].item() == pytest.approx(1 - likelier + rarer, rel=1e-9)


def test_as_beta_goes_to_0_every_pair_has_1():
    loss = apo_zero_loss(*log_ratios(), beta=1e-12)

    torch.testing.assert_close(loss, torch.ones_like(loss))


def test_an_answer_is_pulled_whatever_the_other_one_of_its_pair_is():
    chosen, rejected = log_ratios()
    (alone,) = torch.autograd.grad(apo_zero_loss(chosen, rejected, beta=0.1).sum(), chosen)

    (beside,) = torch.autograd.grad(apo_zero_loss(chosen, rejected + 30, beta=0.1).sum(), chosen)

    torch.testing.assert_close(beside, alone, atol=0, rtol=0)


def test_answers_far_from_the_reference_are_left_alone():
    far = torch.tensor([1000.0, -1000.0], requires_grad=True)

    apo_zero_loss(far, -far, beta=1.0).sum().backward()

    assert far.grad.tolist() == [0.0, 0.0]


def test_at_the_start_it_pulls_with_a_quarter_of_beta():
    gradients = gradients_at_the_start(ApoZeroLoss(ApoZeroConfig(beta=0.3)))

    assert gradients == pytest.approx((-0.075, 0.075))


def test_gradients_are_right():
    assert torch.autograd.gradcheck(lambda c, r: apo_zero_loss(c, r, beta=0.1), log_ratios())

"""APO-down."""

import math

import pytest
import torch
from tests.plugins.algorithms.preference.answers import (
    gradients_at_the_start,
    log_ratios,
    openrlhf_pairs,
)

from rlhf_plugin_algorithms.preference.apo_down import ApoDownConfig, ApoDownLoss, apo_down_loss


def test_pairs_by_hand():
    result = ApoDownLoss(ApoDownConfig(beta=0.1))(openrlhf_pairs())

    # Log-ratio 0.5 twice, margins 0.1 and 0.15: 0.512497 + 1 - 0.524979, and 0.512497 + 1 - 0.537430.
    by_hand = torch.tensor([0.987518, 0.975068], dtype=torch.float64)
    torch.testing.assert_close(result.loss, by_hand, atol=1e-6, rtol=0)
    assert result.chosen_rewards.tolist() == pytest.approx([0.05, 0.05])
    assert result.rejected_rewards.tolist() == pytest.approx([-0.05, -0.1])


def test_each_pair_against_a_slow_loop():
    chosen, rejected = log_ratios()

    actual = apo_down_loss(chosen, rejected, beta=0.1)

    for pair in range(len(chosen)):
        likelier, better = (
            1 / (1 + math.exp(-0.1 * nats))
            for nats in (chosen[pair].item(), chosen[pair].item() - rejected[pair].item())
        )
        assert actual[pair].item() == pytest.approx(likelier + 1 - better, rel=1e-9)


def test_as_beta_goes_to_0_every_pair_has_1():
    loss = apo_down_loss(*log_ratios(), beta=1e-12)

    torch.testing.assert_close(loss, torch.ones_like(loss))


def test_of_pairs_that_are_won_by_as_much_the_rarer_ones_have_less():
    """Here the two answers do not only count by their difference, as in DPO."""
    chosen, rejected = log_ratios()

    rarer = apo_down_loss(chosen - 2.0, rejected - 2.0, beta=0.1)

    assert (rarer < apo_down_loss(chosen, rejected, beta=0.1)).all()


def test_at_the_start_the_rejected_answer_alone_is_pulled():
    gradients = gradients_at_the_start(ApoDownLoss(ApoDownConfig(beta=0.3)))

    assert gradients == pytest.approx((0.0, 0.075))


def test_once_the_pair_is_won_both_become_rarer():
    chosen, rejected = (torch.tensor([nats], requires_grad=True) for nats in (0.0, -1.0))

    apo_down_loss(chosen, rejected, beta=1.0).sum().backward()

    # 1/4 - sigmoid(1) (1 - sigmoid(1)) = 0.25 - 0.196612
    assert chosen.grad.item() == pytest.approx(0.053388, abs=1e-6)
    assert rejected.grad.item() == pytest.approx(0.196612, abs=1e-6)


def test_gradients_are_right():
    assert torch.autograd.gradcheck(lambda c, r: apo_down_loss(c, r, beta=0.1), log_ratios())

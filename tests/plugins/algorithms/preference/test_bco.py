"""BCO."""

import math

import pytest
import torch
from tests.plugins.algorithms.preference.answers import (
    gradients_at_the_start,
    log_ratios,
    openrlhf_pairs,
)

from rlhf_plugin_algorithms.preference.bco import BcoConfig, BcoLoss, bco_loss
from rlhf_plugin_algorithms.preference.dpo import dpo_loss


def test_pairs_by_hand():
    result = BcoLoss(BcoConfig(beta=0.1))(openrlhf_pairs())

    # log(1 + e^-0.05) + log(1 + e^-0.05), and log(1 + e^-0.05) + log(1 + e^-0.1).
    by_hand = torch.tensor([2 * 0.668460, 0.668460 + 0.644397], dtype=torch.float64)
    torch.testing.assert_close(result.loss, by_hand, atol=2e-6, rtol=0)
    assert result.chosen_rewards.tolist() == pytest.approx([0.05, 0.05])
    assert result.rejected_rewards.tolist() == pytest.approx([-0.05, -0.1])


def test_each_pair_against_a_slow_loop():
    chosen, rejected = log_ratios()

    actual = bco_loss(chosen, rejected, beta=0.1)

    for pair in range(len(chosen)):
        likelier, rarer = (
            1 / (1 + math.exp(-0.1 * part[pair].item())) for part in (chosen, rejected)
        )
        expected = -math.log(likelier) - math.log(1 - rarer)
        assert actual[pair].item() == pytest.approx(expected, rel=1e-9)


def test_as_beta_goes_to_0_every_pair_has_2_ln_2():
    loss = bco_loss(*log_ratios(), beta=1e-12)

    torch.testing.assert_close(loss, torch.full_like(loss, 2 * math.log(2)))


def test_it_is_twice_dpo_of_half_the_margin_where_the_answers_mirror_each_other_and_else_above():
    chosen, rejected = log_ratios()

    mirrored = bco_loss(chosen, -chosen, beta=0.1)
    apart = bco_loss(chosen, rejected, beta=0.1)

    torch.testing.assert_close(mirrored, 2 * dpo_loss(chosen, -chosen, beta=0.05))
    assert (apart > 2 * dpo_loss(chosen, rejected, beta=0.05)).all()


def test_an_answer_is_pulled_whatever_the_other_one_of_its_pair_is():
    chosen, rejected = log_ratios()
    (alone,) = torch.autograd.grad(bco_loss(chosen, rejected, beta=0.1).sum(), chosen)

    (beside,) = torch.autograd.grad(bco_loss(chosen, rejected + 30, beta=0.1).sum(), chosen)

    torch.testing.assert_close(beside, alone, atol=0, rtol=0)


def test_at_the_start_it_pulls_with_half_of_beta():
    assert gradients_at_the_start(BcoLoss(BcoConfig(beta=0.3))) == pytest.approx((-0.15, 0.15))


def test_gradients_are_right():
    assert torch.autograd.gradcheck(lambda c, r: bco_loss(c, r, beta=0.1), log_ratios())

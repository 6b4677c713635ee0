"""Robust DPO."""

import math

import pytest
import torch
from pydantic import ValidationError
from tests.plugins.algorithms.preference.answers import (
    gradients_at_the_start,
    log_ratios,
    openrlhf_pairs,
)

from rlhf_plugin_algorithms.preference.dpo import dpo_loss
from rlhf_plugin_algorithms.preference.robust import RobustConfig, RobustLoss, robust_loss

NOISE = {"beta": 0.1, "label_smoothing": 0.2}


def test_pairs_by_hand():
    result = RobustLoss(RobustConfig(beta=0.1, label_smoothing=0.1))(openrlhf_pairs())

    # Margins 0.1 and 0.15: (0.9 * 0.644397 - 0.1 * 0.744397) / 0.8 and (0.9 * 0.620957 - 0.1 * 0.770957) / 0.8.
    by_hand = torch.tensor([0.631897, 0.602207], dtype=torch.float64)
    torch.testing.assert_close(result.loss, by_hand, atol=1e-6, rtol=0)
    assert result.chosen_rewards.tolist() == pytest.approx([0.05, 0.05])
    assert result.rejected_rewards.tolist() == pytest.approx([-0.05, -0.1])


def test_each_pair_against_a_slow_loop():
    chosen, rejected = log_ratios()

    actual = robust_loss(chosen, rejected, **NOISE)

    for pair in range(len(chosen)):
        probability = 1 / (1 + math.exp(-0.1 * (chosen[pair].item() - rejected[pair].item())))
        expected = (-0.8 * math.log(probability) + 0.2 * math.log(1 - probability)) / 0.6
        assert actual[pair].item() == pytest.approx(expected, rel=1e-9)


def test_over_flipped_labels_its_mean_is_dpo_on_clean_ones():
    chosen, rejected = log_ratios()

    kept, flipped = (
        robust_loss(*pair, **NOISE) for pair in ((chosen, rejected), (rejected, chosen))
    )

    torch.testing.assert_close(0.8 * kept + 0.2 * flipped, dpo_loss(chosen, rejected, beta=0.1))


def test_without_smoothing_it_is_dpo():
    torch.testing.assert_close(
        robust_loss(*log_ratios(), beta=0.1, label_smoothing=0.0), dpo_loss(*log_ratios(), beta=0.1)
    )


def test_a_pair_that_is_won_is_still_pushed_on():
    won = torch.tensor([500.0], requires_grad=True)

    robust_loss(won, torch.zeros(1), beta=1.0, label_smoothing=0.2).sum().backward()

    assert won.grad.item() == pytest.approx(-0.2 / 0.6)


def test_at_the_start_it_pulls_with_half_of_beta_over_1_minus_2_epsilon():
    gradients = gradients_at_the_start(RobustLoss(RobustConfig(beta=0.3, label_smoothing=0.1)))

    assert gradients == pytest.approx((-0.15 / 0.8, 0.15 / 0.8))


def test_gradients_are_right():
    assert torch.autograd.gradcheck(lambda c, r: robust_loss(c, r, **NOISE), log_ratios())


@pytest.mark.parametrize("label_smoothing", [0.0, 0.5, -0.1])
def test_a_share_that_is_none_or_half_is_refused(label_smoothing):
    with pytest.raises(ValidationError):
        RobustConfig(label_smoothing=label_smoothing)

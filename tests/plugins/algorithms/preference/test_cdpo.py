"""Conservative DPO."""

import math

import pytest
import torch
from pydantic import ValidationError
from tests.plugins.algorithms.preference.answers import (
    gradients_at_the_start,
    log_ratios,
    openrlhf_pairs,
)

from rlhf_plugin_algorithms.preference.cdpo import CdpoConfig, CdpoLoss, cdpo_loss
from rlhf_plugin_algorithms.preference.dpo import dpo_loss

NOISE = {"beta": 0.1, "label_smoothing": 0.2}


def test_the_numbers_of_openrlhf():
    """OpenRLHF 0.11.2 with a label smoothing of 0.1: loss 0.645177, rewards those of DPO."""
    result = CdpoLoss(CdpoConfig(beta=0.1, label_smoothing=0.1))(openrlhf_pairs())

    # 0.9 * log(1 + e^-m) + 0.1 * log(1 + e^m) at the margins 0.1 and 0.15.
    by_hand = torch.tensor([0.654397, 0.635957], dtype=torch.float64)
    torch.testing.assert_close(result.loss, by_hand, atol=1e-6, rtol=0)
    assert result.loss.mean().item() == pytest.approx(0.645177, abs=1e-6)
    assert result.chosen_rewards.tolist() == pytest.approx([0.05, 0.05])
    assert result.rejected_rewards.tolist() == pytest.approx([-0.05, -0.1])


def test_each_pair_is_the_cross_entropy_of_a_smoothed_label():
    chosen, rejected = log_ratios()

    actual = cdpo_loss(chosen, rejected, **NOISE)

    for pair in range(len(chosen)):
        probability = 1 / (1 + math.exp(-0.1 * (chosen[pair].item() - rejected[pair].item())))
        expected = -0.8 * math.log(probability) - 0.2 * math.log(1 - probability)
        assert actual[pair].item() == pytest.approx(expected, rel=1e-9)


def test_without_smoothing_it_is_dpo():
    torch.testing.assert_close(
        cdpo_loss(*log_ratios(), beta=0.1, label_smoothing=0.0), dpo_loss(*log_ratios(), beta=0.1)
    )


def test_it_is_a_mean_over_the_label_and_its_opposite():
    chosen, rejected = log_ratios()

    actual = cdpo_loss(chosen, rejected, **NOISE)

    right, wrong = dpo_loss(chosen, rejected, beta=0.1), dpo_loss(rejected, chosen, beta=0.1)
    torch.testing.assert_close(actual, 0.8 * right + 0.2 * wrong)


def test_a_pair_rests_where_the_policy_is_as_sure_as_the_label():
    margin = math.log(0.8 / 0.2)
    chosen = torch.tensor([margin - 1.0, margin, margin + 1.0], requires_grad=True)

    cdpo_loss(chosen, torch.zeros(3), beta=1.0, label_smoothing=0.2).sum().backward()

    before, at, beyond = chosen.grad.tolist()
    assert before < 0 < beyond
    assert at == pytest.approx(0.0, abs=1e-6)


def test_at_the_start_it_pulls_with_half_of_beta_times_1_minus_2_epsilon():
    gradients = gradients_at_the_start(CdpoLoss(CdpoConfig(beta=0.3, label_smoothing=0.1)))

    assert gradients == pytest.approx((-0.12, 0.12))


def test_gradients_are_right():
    assert torch.autograd.gradcheck(lambda c, r: cdpo_loss(c, r, **NOISE), log_ratios())


@pytest.mark.parametrize("label_smoothing", [0.0, 0.5, -0.1])
def test_a_smoothing_that_is_none_or_leaves_no_label_is_refused(label_smoothing):
    with pytest.raises(ValidationError):
        CdpoConfig(label_smoothing=label_smoothing)

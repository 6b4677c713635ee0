"""DPO."""

import math

import pytest
import torch
from tests.plugins.preference.answers import gradients_at_the_start, log_ratios, openrlhf_pairs

from rlhf_plugin_preference.dpo import DpoConfig, DpoLoss, dpo_loss


def test_the_numbers_of_openrlhf():
    """OpenRLHF 0.11.2: loss 0.632677, rewards 0.05 and 0.05 against -0.05 and -0.1."""
    result = DpoLoss(DpoConfig(beta=0.1))(openrlhf_pairs())

    # Margins 0.1 * (0.5 + 0.5) and 0.1 * (0.5 + 1): log(1 + e^-0.1) and log(1 + e^-0.15).
    by_hand = torch.tensor([0.644397, 0.620957], dtype=torch.float64)
    torch.testing.assert_close(result.loss, by_hand, atol=1e-6, rtol=0)
    assert result.loss.mean().item() == pytest.approx(0.632677, abs=1e-6)
    assert result.chosen_rewards.tolist() == pytest.approx([0.05, 0.05])
    assert result.rejected_rewards.tolist() == pytest.approx([-0.05, -0.1])


@pytest.mark.parametrize("beta", [0.01, 0.1, 2.0])
def test_each_pair_is_a_logistic_loss(beta):
    chosen, rejected = log_ratios()

    actual = dpo_loss(chosen, rejected, beta=beta)

    for pair in range(len(chosen)):
        margin = beta * (chosen[pair].item() - rejected[pair].item())
        probability = 1 / (1 + math.exp(-margin))
        assert actual[pair].item() == pytest.approx(-math.log(probability), rel=1e-9)


def test_where_policy_and_reference_agree_the_loss_is_ln_2_and_pulls_with_half_of_beta():
    loss = DpoLoss(DpoConfig(beta=0.3))

    assert dpo_loss(torch.zeros(3), torch.zeros(3), beta=0.3).tolist() == pytest.approx(
        [math.log(2)] * 3
    )
    assert gradients_at_the_start(loss) == pytest.approx((-0.15, 0.15))


def test_as_beta_goes_to_0_every_pair_has_ln_2():
    loss = dpo_loss(*log_ratios(), beta=1e-12)

    torch.testing.assert_close(loss, torch.full_like(loss, math.log(2)))


def test_a_pair_that_is_lost_clearly_has_a_linear_loss():
    """``-log sigmoid(-x)`` goes to x, also where ``exp`` overflows."""
    lost = torch.tensor([-1000.0], requires_grad=True)

    loss = dpo_loss(lost, torch.zeros(1), beta=1.0)
    loss.sum().backward()

    assert loss.item() == 1000.0
    assert lost.grad.item() == -1.0


def test_only_the_difference_of_a_pair_counts():
    chosen, rejected = log_ratios()

    actual = dpo_loss(chosen + 7.0, rejected + 7.0, beta=0.1)

    torch.testing.assert_close(actual, dpo_loss(chosen, rejected, beta=0.1))


def test_gradients_are_right():
    assert torch.autograd.gradcheck(lambda c, r: dpo_loss(c, r, beta=0.1), log_ratios())

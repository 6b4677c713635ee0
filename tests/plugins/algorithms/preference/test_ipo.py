"""IPO."""

import pytest
import torch
from tests.plugins.algorithms.preference.answers import (
    answers,
    gradients_at_the_start,
    log_ratios,
    openrlhf_pairs,
)

from rlhf_core.contracts import PreferenceInputs
from rlhf_plugin_algorithms.preference.ipo import IpoConfig, IpoLoss, ipo_loss


def test_the_numbers_of_openrlhf():
    """OpenRLHF 0.11.2: loss 14.125, rewards those of DPO."""
    result = IpoLoss(IpoConfig(beta=0.1))(openrlhf_pairs())

    # (1 - 5)^2 and (1.5 - 5)^2
    assert result.loss.tolist() == pytest.approx([16.0, 12.25])
    assert result.loss.mean().item() == pytest.approx(14.125)
    assert result.chosen_rewards.tolist() == pytest.approx([0.05, 0.05])
    assert result.rejected_rewards.tolist() == pytest.approx([-0.05, -0.1])


def test_per_token_each_answer_is_divided_by_its_own_length():
    pair = PreferenceInputs(
        chosen=answers([-10.0], [-16.0], [3]),  # 6 / 3 = 2
        rejected=answers([-9.0], [-4.0], [5]),  # -5 / 5 = -1
    )

    result = IpoLoss(IpoConfig(beta=0.25, length_normalized=True))(pair)

    assert result.loss.tolist() == pytest.approx([1.0])  # (3 - 2)^2
    assert (result.chosen_rewards.item(), result.rejected_rewards.item()) == (0.5, -0.25)


@pytest.mark.parametrize("beta", [0.01, 0.1, 2.0])
def test_each_pair_against_a_slow_loop(beta):
    chosen, rejected = log_ratios()

    actual = ipo_loss(chosen, rejected, beta=beta)

    for pair in range(len(chosen)):
        distance = chosen[pair].item() - rejected[pair].item()
        assert actual[pair].item() == pytest.approx((distance - 0.5 / beta) ** 2, rel=1e-9)


def test_a_pair_rests_at_half_of_the_inverse_of_beta_and_is_drawn_back_beyond():
    chosen = torch.tensor([4.0, 5.0, 6.0], requires_grad=True)

    loss = ipo_loss(chosen, torch.zeros(3), beta=0.1)
    loss.sum().backward()

    assert loss.tolist() == [1.0, 0.0, 1.0]
    assert chosen.grad.tolist() == [-2.0, 0.0, 2.0]


def test_answers_of_one_token_are_the_same_per_token():
    pair = PreferenceInputs(
        chosen=answers([-1.0], [-2.0], [1]), rejected=answers([-3.0], [-2.5], [1])
    )

    sums, means = (
        IpoLoss(IpoConfig(length_normalized=each))(pair).loss.item() for each in (False, True)
    )

    assert sums == means


def test_at_the_start_it_pulls_with_the_inverse_of_beta_shared_among_tokens_if_normalized():
    assert gradients_at_the_start(IpoLoss(IpoConfig(beta=0.2))) == pytest.approx((-5.0, 5.0))
    per_token = IpoLoss(IpoConfig(beta=0.2, length_normalized=True))
    assert gradients_at_the_start(per_token, [10]) == pytest.approx((-0.5, 0.5))


def test_gradients_are_right():
    assert torch.autograd.gradcheck(lambda c, r: ipo_loss(c, r, beta=0.1), log_ratios())

"""SimPO."""

import math

import pytest
import torch
from tests.plugins.algorithms.preference.answers import (
    answers,
    gradients_at_the_start,
    mean_logprobs,
)

from rlhf_core.contracts import PreferenceInputs
from rlhf_plugin_algorithms.preference.dpo import dpo_loss
from rlhf_plugin_algorithms.preference.simpo import SimpoConfig, SimpoLoss, simpo_loss


def test_a_pair_by_hand():
    pair = PreferenceInputs(
        chosen=answers([-6.0], num_tokens=[4]), rejected=answers([-4.0], num_tokens=[2])
    )

    result = SimpoLoss(SimpoConfig(beta=2.0, gamma=0.5))(pair)

    # 2 * (-1.5 + 2) - 0.5 = 0.5: the longer answer is less likely as a whole, and likelier per token.
    assert result.loss.tolist() == pytest.approx([math.log1p(math.exp(-0.5))])
    assert result.chosen_rewards.tolist() == pytest.approx([-3.0])
    assert result.rejected_rewards.tolist() == pytest.approx([-4.0])


@pytest.mark.parametrize(("beta", "gamma"), [(2.0, 1.0), (2.5, 0.0), (10.0, 3.0)])
def test_each_pair_against_a_slow_loop(beta, gamma):
    chosen, rejected = mean_logprobs()

    actual = simpo_loss(chosen, rejected, beta=beta, gamma=gamma)

    for pair in range(len(chosen)):
        margin = beta * chosen[pair].item() - beta * rejected[pair].item() - gamma
        assert actual[pair].item() == pytest.approx(math.log1p(math.exp(-margin)), rel=1e-9)


def test_equal_answers_lack_the_whole_margin():
    equal = torch.tensor([-1.0, -3.0])

    loss = simpo_loss(equal, equal, beta=2.0, gamma=1.5)

    assert loss.tolist() == pytest.approx([math.log(1 + math.exp(1.5))] * 2)


def test_without_a_margin_it_is_dpo_of_mean_log_probs():
    torch.testing.assert_close(
        simpo_loss(*mean_logprobs(), beta=2.0, gamma=0.0), dpo_loss(*mean_logprobs(), beta=2.0)
    )


def test_a_larger_margin_costs_more():
    small, large = (simpo_loss(*mean_logprobs(), beta=2.0, gamma=gamma) for gamma in (0.5, 1.0))

    assert (large > small).all()


def test_at_equal_answers_it_pulls_with_beta_times_sigmoid_of_gamma_shared_among_tokens():
    chosen, rejected = gradients_at_the_start(SimpoLoss(SimpoConfig(beta=2.0, gamma=1.0)), [8])

    pull = 2.0 / (1 + math.exp(-1.0)) / 8
    assert (chosen, rejected) == pytest.approx((-pull, pull))


def test_gradients_are_right():
    assert torch.autograd.gradcheck(
        lambda c, r: simpo_loss(c, r, beta=2.0, gamma=1.0), mean_logprobs()
    )

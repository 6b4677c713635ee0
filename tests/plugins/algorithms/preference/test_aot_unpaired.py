"""AOT on answers without a partner."""

import math

import pytest
import torch
from tests.plugins.algorithms.preference.answers import (
    answers,
    gradients_at_the_start,
    log_ratios,
    update_of,
)

from rlhf_plugin_algorithms.preference.aot_unpaired import (
    AotUnpairedConfig,
    AotUnpairedLoss,
    match_loss,
)
from rlhf_plugin_algorithms.preference.dpo import dpo_loss


def test_pairs_by_hand():
    # Log-ratios of the chosen answers 3, 1, and of the rejected ones -2, 2: 3 is matched with 2, and 1 with -2.
    chosen, rejected = answers([-1.0, -2.0], [-4.0, -3.0]), answers([-5.0, -1.0], [-3.0, -3.0])

    result = AotUnpairedLoss(AotUnpairedConfig(beta=0.5))(update_of(chosen, rejected))
    result.loss.sum().backward()

    high, low = math.log1p(math.exp(-0.5)), math.log1p(math.exp(-1.5))
    # Of the first pair the chosen answer is in the match above and the rejected one in that below; so of the second.
    assert result.loss.tolist() == pytest.approx([(high + low) / 2] * 2)
    pulls = [-0.5 / (1 + math.exp(0.5)), -0.5 / (1 + math.exp(1.5))]
    assert chosen.policy.grad.tolist() == pytest.approx(pulls)
    assert rejected.policy.grad.tolist() == pytest.approx([-pulls[1], -pulls[0]])
    assert result.chosen_rewards.tolist() == [1.5, 0.5]


def test_the_gradient_of_an_update_is_that_of_its_sorted_answers():
    """Cut into pairs, where each match has two ends in different ones."""
    gains, losses = log_ratios()
    inputs = update_of(*(_at_reference(ratios) for ratios in (gains, losses)))

    loss = AotUnpairedLoss(AotUnpairedConfig(beta=0.7))(inputs).loss
    actual = torch.autograd.grad(loss.sum(), (inputs.chosen.policy, inputs.rejected.policy))
    whole = dpo_loss(gains.sort().values, losses.sort().values, beta=0.7)
    expected = torch.autograd.grad(whole.sum(), (gains, losses))

    torch.testing.assert_close(loss.sum(), whole.sum())
    torch.testing.assert_close(actual, expected)


def test_partners_play_no_part():
    gains, losses = (_at_reference(ratios) for ratios in log_ratios())
    turned = _at_reference(losses.log_ratio.roll(1))
    loss = AotUnpairedLoss(AotUnpairedConfig())

    torch.testing.assert_close(
        loss(update_of(gains, turned)).loss.sum(), loss(update_of(gains, losses)).loss.sum()
    )


def test_each_match_against_a_slow_loop():
    gains, losses = log_ratios()

    actual = match_loss(gains, losses, beta=0.1, label_smoothing=0.2)

    for pair in range(len(gains)):
        right = 1 / (1 + math.exp(-0.1 * (gains[pair] - losses[pair]).item()))
        expected = -0.8 * math.log(right) - 0.2 * math.log(1 - right)
        assert actual[pair].item() == pytest.approx(expected, rel=1e-9)


def test_at_the_start_it_pulls_with_half_of_beta():
    loss = AotUnpairedLoss(AotUnpairedConfig(beta=0.3))

    assert gradients_at_the_start(loss) == pytest.approx((-0.15, 0.15))


def test_gradients_are_right():
    assert torch.autograd.gradcheck(
        lambda u, v: match_loss(u, v, beta=0.1, label_smoothing=0.1), log_ratios()
    )


def _at_reference(ratios: torch.Tensor):
    return answers((ratios.detach() - 3).tolist(), [-3.0] * len(ratios))

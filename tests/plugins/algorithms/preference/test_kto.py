"""KTO."""

import math

import pytest
import torch
from tests.plugins.algorithms.preference.answers import answers, log_ratios

from rlhf_core.contracts import PreferenceInputs, metric_values
from rlhf_plugin_algorithms.preference.kto import KtoConfig, KtoLoss, kto_loss


def inputs(mismatched_kl=0.0, *, chosen=(2.0, -1.0), rejected=(1.0,)):
    """Answers with the given log-ratios."""
    kinds = {
        kind: answers([ratio - 20.0 for ratio in ratios], [-20.0] * len(ratios))
        for kind, ratios in (("chosen", chosen), ("rejected", rejected))
    }
    kl = torch.tensor(mismatched_kl, dtype=torch.float64)
    return PreferenceInputs(**kinds, mismatched_kl=kl)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_answers_by_hand():
    config = KtoConfig(beta=0.5, desirable_weight=2.0, undesirable_weight=3.0)

    result = KtoLoss(config)(inputs(0.4))

    # Gains over 0.4: 1.6 and -1.4 of the desirable answers, 0.4 - 1 = -0.6 of the undesirable one.
    expected = [2 * (1 - sigmoid(0.8)), 2 * (1 - sigmoid(-0.7)), 3 * (1 - sigmoid(-0.3))]
    assert result.loss.tolist() == pytest.approx(expected)
    assert result.chosen_rewards.tolist() == pytest.approx([1.0, -0.5])
    assert result.rejected_rewards.tolist() == pytest.approx([0.5])
    assert metric_values(result.metrics) == {"kto/reference_point": pytest.approx(0.4)}


def test_each_answer_against_a_slow_loop():
    gains, _ = log_ratios()

    actual = kto_loss(gains, beta=0.1, weight=1.5)

    for answer in range(len(gains)):
        expected = 1.5 * (1 - sigmoid(0.1 * gains[answer].item()))
        assert actual[answer].item() == pytest.approx(expected, rel=1e-9)


def test_a_negative_estimate_of_the_kl_counts_as_0():
    below, at = (KtoLoss(KtoConfig())(inputs(kl)) for kl in (-3.0, 0.0))

    assert torch.equal(below.loss, at.loss)
    assert metric_values(below.metrics) == {"kto/reference_point": 0.0}


def test_at_the_start_an_answer_has_half_its_weight_and_a_quarter_of_beta_as_gradient():
    start = inputs(chosen=(0.0,), rejected=(0.0,))

    result = KtoLoss(KtoConfig(beta=0.4, desirable_weight=1.0, undesirable_weight=2.0))(start)
    result.loss.sum().backward()

    assert result.loss.tolist() == [0.5, 1.0]
    assert start.chosen.policy.grad.item() == pytest.approx(-0.1)
    assert start.rejected.policy.grad.item() == pytest.approx(0.2)


def test_as_beta_goes_to_0_every_answer_has_half_its_weight():
    loss = kto_loss(log_ratios()[0], beta=1e-12, weight=2.0)

    torch.testing.assert_close(loss, torch.ones_like(loss))


@pytest.mark.parametrize("far", [1000.0, -1000.0])
def test_answers_far_from_the_reference_point_are_left_alone(far):
    case = inputs(chosen=(far,), rejected=(far,))

    KtoLoss(KtoConfig(beta=1.0))(case).loss.sum().backward()

    assert case.chosen.policy.grad.item() == case.rejected.policy.grad.item() == 0.0


@pytest.mark.parametrize(("chosen", "rejected"), [((), (1.0, 2.0)), ((1.0, 2.0), ())])
def test_one_kind_of_answers_is_enough(chosen, rejected):
    result = KtoLoss(KtoConfig())(inputs(0.1, chosen=chosen, rejected=rejected))

    assert result.loss.shape == (2,)
    assert result.chosen_rewards.shape == (len(chosen),)
    assert result.rejected_rewards.shape == (len(rejected),)


def test_gradients_are_right():
    assert torch.autograd.gradcheck(lambda g: kto_loss(g, beta=0.1, weight=2.0), log_ratios()[:1])

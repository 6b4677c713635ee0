"""AOT on pairs."""

import math

import pytest
import torch
from tests.plugins.algorithms.preference.answers import (
    answers,
    gradients_at_the_start,
    log_ratios,
    update_of,
)

from rlhf_core.contracts import MatchedPairs
from rlhf_plugin_algorithms.preference.aot import AotConfig, AotLoss, aot_loss
from rlhf_plugin_algorithms.preference.dpo import dpo_loss


def test_pairs_by_hand():
    # Margins of the policy 3, 1, 2; of the reference 0, 4, -1, which are -1, 0, 4 in order.
    chosen = answers([-1.0, -2.0, -3.0], [-5.0, -1.0, -4.0])
    rejected = answers([-4.0, -3.0, -5.0], [-5.0, -5.0, -3.0])

    result = AotLoss(AotConfig(beta=0.5))(update_of(chosen, rejected))
    result.loss.sum().backward()

    # The largest, 3, with 4; the smallest, 1, with -1; 2 with 0.
    differences = torch.tensor([3.0 - 4.0, 1.0 - -1.0, 2.0 - 0.0], dtype=torch.float64)
    torch.testing.assert_close(result.loss, torch.log1p(torch.exp(-0.5 * differences)))
    pull = -0.5 / (1 + torch.exp(0.5 * differences))
    torch.testing.assert_close(chosen.policy.grad, pull)
    torch.testing.assert_close(rejected.policy.grad, -pull)
    assert result.chosen_rewards.tolist() == [2.0, -0.5, 0.5]
    assert result.rejected_rewards.tolist() == [0.5, 1.0, -1.0]


def test_it_is_dpo_where_both_rank_the_pairs_alike():
    chosen = answers([-1.0, -1.0, -1.0], [-2.0, -2.0, -2.0])
    rejected = answers([-2.0, -3.0, -9.0], [-2.5, -2.6, -7.0])

    loss = AotLoss(AotConfig())(update_of(chosen, rejected)).loss

    torch.testing.assert_close(loss, dpo_loss(chosen.log_ratio, rejected.log_ratio, beta=0.1))


def test_each_pair_against_a_slow_loop():
    margins, references = log_ratios()

    actual = aot_loss(margins, references, beta=0.1, label_smoothing=0.2)

    for pair in range(len(margins)):
        right = 1 / (1 + math.exp(-0.1 * (margins[pair] - references[pair]).item()))
        expected = -0.8 * math.log(right) - 0.2 * math.log(1 - right)
        assert actual[pair].item() == pytest.approx(expected, rel=1e-9)


def test_equal_numbers_are_matched_once_each():
    same = answers([-2.0, -2.0, -2.0], [-1.0, -2.0, -3.0])

    matched = MatchedPairs.of(same, answers([-3.0] * 3, [-3.0] * 3))

    assert sorted(matched.reference_margin.tolist()) == [0.0, 1.0, 2.0]


def test_at_the_start_it_pulls_with_half_of_beta():
    assert gradients_at_the_start(AotLoss(AotConfig(beta=0.3))) == pytest.approx((-0.15, 0.15))


def test_gradients_are_right():
    assert torch.autograd.gradcheck(
        lambda u, v: aot_loss(u, v, beta=0.1, label_smoothing=0.1), log_ratios()
    )

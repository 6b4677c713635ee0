"""ORPO."""

import math
from decimal import Decimal

import pytest
import torch
from tests.plugins.algorithms.preference.answers import (
    answers,
    gradients_at_the_start,
    mean_logprobs,
)

from rlhf_core.contracts import PreferenceInputs, metric_values
from rlhf_plugin_algorithms.preference.orpo import (
    MAX_LOGPROB,
    OrpoConfig,
    OrpoLoss,
    log_odds,
    orpo_terms,
)


def pair(chosen, rejected, num_tokens=(2, 3)):
    """A pair of answers with the given probability per token."""
    first, second = num_tokens
    return PreferenceInputs(
        chosen=answers([first * math.log(chosen)], num_tokens=[first]),
        rejected=answers([second * math.log(rejected)], num_tokens=[second]),
    )


def test_a_pair_by_hand():
    result = OrpoLoss(OrpoConfig(lambda_=0.5))(pair(0.8, 0.2))

    # Odds 4 and 1 / 4, so the odds ratio is 16, and -log sigmoid(log 16) = log(17 / 16).
    assert result.loss.tolist() == pytest.approx([-math.log(0.8) + 0.5 * math.log(17 / 16)])
    assert result.chosen_rewards.tolist() == pytest.approx([0.5 * math.log(0.8)])
    assert result.rejected_rewards.tolist() == pytest.approx([0.5 * math.log(0.2)])
    assert metric_values(result.metrics) == {
        "orpo/nll": pytest.approx(-math.log(0.8)),
        "orpo/log_odds_ratio": pytest.approx(math.log(16)),
    }


def test_each_pair_against_a_slow_loop():
    chosen, rejected = mean_logprobs()

    terms = orpo_terms(chosen, rejected)

    for row in range(len(chosen)):
        first, second = (math.exp(column[row].item()) for column in (chosen, rejected))
        ratio = (first / (1 - first)) / (second / (1 - second))
        assert terms.log_odds_ratio[row].item() == pytest.approx(math.log(ratio), rel=1e-9)
        expected = -math.log(ratio / (1 + ratio))
        assert terms.ratio_loss[row].item() == pytest.approx(expected, rel=1e-9)
        assert terms.nll[row].item() == -chosen[row].item()


def test_equal_answers_have_ln_2_beside_the_supervised_loss():
    result = OrpoLoss(OrpoConfig(lambda_=0.3))(pair(0.4, 0.4))

    assert result.loss.item() == pytest.approx(-math.log(0.4) + 0.3 * math.log(2))


def test_as_lambda_goes_to_0_it_is_supervised_fine_tuning_per_token():
    result = OrpoLoss(OrpoConfig(lambda_=1e-12))(pair(0.4, 0.9, num_tokens=(7, 2)))

    assert result.loss.item() == pytest.approx(-math.log(0.4))


def test_the_gradient_at_equal_answers():
    """Log-probs of -4 over 4 tokens: P is 1 / e, and the odds ratio pulls with lambda / 2 / (1 - P), per token."""
    chosen, rejected = gradients_at_the_start(OrpoLoss(OrpoConfig(lambda_=0.2)), [4])

    pull = 0.1 / (1 - math.exp(-1)) / 4
    assert chosen == pytest.approx(-0.25 - pull)
    assert rejected == pytest.approx(pull)


@pytest.mark.parametrize("logprob", [-1.1e-6, -1e-5, -1e-3, -0.1, -0.6931, -0.6932, -1.0, -80.0])
def test_log_odds_keep_their_digits_in_float32(logprob):
    single = torch.tensor([logprob])

    actual = log_odds(single).item()

    exact = Decimal(single.item())
    assert actual == pytest.approx(float(exact - (1 - exact.exp()).ln()), rel=1e-6, abs=1e-6)


def test_log_odds_are_continuous_at_the_bound_and_have_slope_1_beyond():
    points = torch.tensor([2 * MAX_LOGPROB, MAX_LOGPROB, MAX_LOGPROB / 2, 0.0], requires_grad=True)

    odds = log_odds(points)
    odds.sum().backward()

    before, bound, beyond, certain = odds.tolist()
    assert before < bound
    assert bound == pytest.approx(-math.log(-MAX_LOGPROB), rel=1e-5)
    assert beyond == pytest.approx(bound, rel=1e-5)
    assert certain == pytest.approx(bound, rel=1e-5)
    assert points.grad[0].item() == pytest.approx(0.5e6, rel=1e-3)
    assert points.grad[2:].tolist() == [1.0, 1.0]


def test_odds_of_one_half_are_1():
    assert log_odds(torch.tensor([math.log(0.5)])).item() == pytest.approx(0.0, abs=1e-6)


def test_gradients_are_right():
    def total(chosen, rejected):
        terms = orpo_terms(chosen, rejected)
        return terms.nll + 0.3 * terms.ratio_loss

    assert torch.autograd.gradcheck(total, mean_logprobs())

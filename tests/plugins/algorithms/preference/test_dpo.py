"""DPO."""

import math

import pytest
import torch
from tests.plugins.algorithms.preference.answers import (
    answers,
    gradients_at_the_start,
    log_ratios,
    openrlhf_pairs,
)

from rlhf_core.contracts import PreferenceInputs
from rlhf_plugin_algorithms.preference.dpo import (
    MAX_EXPONENT,
    DpoConfig,
    DpoLoss,
    divergence_score,
    dpo_loss,
)

DIVERGENCES = [
    ("reverse_kl", None),
    ("js_divergence", None),
    ("alpha_divergence", 0.3),
    ("forward_kl", None),
]


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


@pytest.mark.parametrize(
    ("f_divergence", "alpha", "chosen", "rejected"),
    [
        # The answers' ratios are 2 and 1/2.
        ("reverse_kl", None, math.log(2), -math.log(2)),
        ("js_divergence", None, math.log(4 / 3), math.log(2 / 3)),
        ("alpha_divergence", 0.5, 2 - math.sqrt(2), 2 - 2 * math.sqrt(2)),
        ("forward_kl", None, 1 / 2, -1.0),
    ],
)
def test_pairs_under_other_divergences_by_hand(f_divergence, alpha, chosen, rejected):
    pair = PreferenceInputs(
        chosen=answers([-10.0 + math.log(2)], [-10.0]),
        rejected=answers([-9.0 - math.log(2)], [-9.0]),
    )

    result = DpoLoss(DpoConfig(beta=0.5, f_divergence=f_divergence, alpha=alpha))(pair)

    assert result.chosen_rewards.item() == pytest.approx(0.5 * chosen)
    assert result.rejected_rewards.item() == pytest.approx(0.5 * rejected)
    assert result.loss.item() == pytest.approx(math.log(1 + math.exp(0.5 * (rejected - chosen))))


def test_alpha_divergences_lie_between_the_two_kls():
    log_ratio, _ = log_ratios()

    almost = [divergence_score(log_ratio, "alpha_divergence", alpha) for alpha in (1e-9, 1 - 1e-9)]

    torch.testing.assert_close(almost[0], log_ratio)
    torch.testing.assert_close(almost[1], divergence_score(log_ratio, "forward_kl", None))


@pytest.mark.parametrize(("f_divergence", "alpha"), DIVERGENCES)
def test_scores_rise_with_the_ratio_and_are_0_without_a_difference(f_divergence, alpha):
    log_ratio = torch.linspace(-30, 30, 61, dtype=torch.float64)

    score = divergence_score(log_ratio, f_divergence, alpha)

    assert score[30].item() == pytest.approx(0.0, abs=1e-15)
    assert (score.diff() > 0).all()


def test_near_the_reference_divergences_differ_by_a_factor_alone():
    """Half the pull for the Jensen-Shannon divergence, whose second derivative at 1 is half that of the others."""
    pulls = [
        gradients_at_the_start(DpoLoss(DpoConfig(beta=0.4, f_divergence=name, alpha=alpha)))[0]
        for name, alpha in DIVERGENCES
    ]

    assert pulls == pytest.approx([-0.2, -0.1, -0.2, -0.2])


@pytest.mark.parametrize(("f_divergence", "alpha"), DIVERGENCES)
def test_gradients_of_scores_are_right(f_divergence, alpha):
    log_ratio = log_ratios()[0]

    assert torch.autograd.gradcheck(
        lambda nats: divergence_score(nats, f_divergence, alpha), log_ratio
    )


def test_an_answer_that_became_impossible_has_a_finite_score():
    impossible = torch.tensor([-1e6], requires_grad=True)

    score = divergence_score(impossible, "forward_kl", None)
    score.sum().backward()

    assert score.item() == pytest.approx(-math.exp(MAX_EXPONENT), rel=1e-5)
    assert impossible.grad.item() == 0.0

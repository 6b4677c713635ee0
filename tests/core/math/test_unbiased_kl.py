"""The KL term whose gradient is the KL's own."""

import math

import pytest
import torch

from rlhf_core.math import kl_estimate, unbiased_kl
from rlhf_plugin_algorithms.kl.k1 import k1
from rlhf_plugin_algorithms.kl.k2 import k2
from rlhf_plugin_algorithms.kl.k3 import k3

ESTIMATORS = [k1, k2, k3]
POLICY = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
REFERENCE = torch.tensor([-1.5, -1.0, -0.5], dtype=torch.float64)
OLD = torch.tensor([-1.2, -1.0, -0.5], dtype=torch.float64)


def gradient_of(policy, old, reference, estimator, mask=None):
    policy = policy.clone().requires_grad_()
    (grad,) = torch.autograd.grad(
        unbiased_kl(policy, old, reference, estimator, mask).sum(), policy
    )
    return grad


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_gradient_is_the_weighted_log_ratio_for_every_estimator(estimator):
    """The numbers are also those of OpenRLHF 0.11.2."""
    actual = gradient_of(POLICY, OLD, REFERENCE, estimator)

    # w = e^0.2 = 1.221403, e^-1 = 0.367879, 1; l = 0.5, -1, 0
    expected = torch.tensor([0.610701, -0.367879, 0.0], dtype=torch.float64)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0.0)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [(k1, [1.0, 1.0, 1.0]), (k2, [0.5, -1.0, 0.0]), (k3, [0.393469, -1.718282, 0.0])],
)
def test_the_plain_estimators_have_other_gradients(estimator, expected):
    """The numbers are also those of OpenRLHF 0.11.2: what the unbiased gradient replaces."""
    policy = POLICY.clone().requires_grad_()

    (actual,) = torch.autograd.grad(kl_estimate(policy, REFERENCE, estimator).sum(), policy)

    torch.testing.assert_close(
        actual, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0.0
    )


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_value_is_the_estimators(estimator):
    torch.testing.assert_close(
        unbiased_kl(POLICY, OLD, REFERENCE, estimator), kl_estimate(POLICY, REFERENCE, estimator)
    )


def test_on_policy_the_gradient_is_that_of_k2():
    policy = POLICY.clone().requires_grad_()
    (expected,) = torch.autograd.grad(kl_estimate(policy, REFERENCE, k2).sum(), policy)

    torch.testing.assert_close(gradient_of(POLICY, POLICY, REFERENCE, k3), expected)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_in_expectation_it_is_the_gradient_of_the_exact_kl_off_policy(estimator):
    """Exact, by summing over a small vocabulary that an older policy sampled."""
    reference = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).log()
    old = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
    logits = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(0)
    exact = (logprobs.exp() * (logprobs - reference)).sum()
    sampled = (old.exp() * unbiased_kl(logprobs, old, reference, estimator)).sum()

    (expected,) = torch.autograd.grad(exact, logits, retain_graph=True)
    (actual,) = torch.autograd.grad(sampled, logits)

    torch.testing.assert_close(actual, expected)


def test_the_weight_is_at_most_ten():
    """e^5 = 148 becomes 10; times l = 0.5."""
    actual = gradient_of(torch.tensor([-1.0]), torch.tensor([-6.0]), torch.tensor([-1.5]), k3)

    torch.testing.assert_close(actual, torch.tensor([5.0]))


def test_beyond_the_clamp_a_token_is_still_pulled_back():
    """l = -20 counts as -10, and so does the gradient, where the plain estimators have none."""
    actual = gradient_of(torch.tensor([-21.0]), torch.tensor([-21.0]), torch.tensor([-1.0]), k3)

    torch.testing.assert_close(actual, torch.tensor([-10.0]))


def test_neither_old_nor_reference_gets_a_gradient():
    old, reference = OLD.clone().requires_grad_(), REFERENCE.clone().requires_grad_()
    policy = POLICY.clone().requires_grad_()

    unbiased_kl(policy, old, reference, k1).sum().backward()

    assert old.grad is None
    assert reference.grad is None


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_nan_at_padding_has_no_effect(estimator):
    mask = torch.tensor([True, True, True, False])
    padded = [
        torch.cat((column, torch.tensor([math.nan], dtype=torch.float64)))
        for column in (POLICY, OLD, REFERENCE)
    ]

    value = unbiased_kl(*padded, estimator, mask)
    gradient = gradient_of(*padded, estimator, mask)

    torch.testing.assert_close(value[:3], kl_estimate(POLICY, REFERENCE, estimator))
    torch.testing.assert_close(gradient[:3], gradient_of(POLICY, OLD, REFERENCE, estimator))
    assert value[3] == 0
    assert gradient[3] == 0


@pytest.mark.parametrize("difference", [1e4, -1e4])
def test_extremes_are_finite(difference):
    policy = torch.tensor([-2e4])

    for old, reference in ((policy + difference, policy), (policy, policy + difference)):
        value = unbiased_kl(policy, old, reference, k3)
        assert torch.isfinite(value).all(), value
        gradient = gradient_of(policy, old, reference, k3)
        assert torch.isfinite(gradient).all(), gradient


def test_half_precision_is_computed_in_float32():
    halves = [column.bfloat16() for column in (POLICY, OLD, REFERENCE)]

    assert unbiased_kl(*halves, k3).dtype == torch.float32

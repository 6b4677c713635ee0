"""KL estimates and the adaptive coefficient."""

import inspect
import math

import pytest
import torch

from rlhf_core.errors import NonFiniteError
from rlhf_core.math import adapted_kl_coef, kl_estimate
from rlhf_plugin_algorithms.kl.k1 import k1
from rlhf_plugin_algorithms.kl.k2 import k2
from rlhf_plugin_algorithms.kl.k3 import k3
from rlhf_testing.errors import has_code

ESTIMATORS = [k1, k2, k3]


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (k1, [0.5, -1.0, 0.0]),
        (k2, [0.125, 0.5, 0.0]),  # 0.25 / 2, 1 / 2
        (k3, [0.106531, 0.718282, 0.0]),  # e^-0.5 - 1 + 0.5, e^1 - 1 - 1
    ],
)
def test_each_estimator_by_hand(estimator, expected):
    """The numbers are also those of OpenRLHF 0.11.2."""
    policy, reference = torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([-1.5, -1.0, -0.5])

    actual = kl_estimate(policy, reference, estimator)

    torch.testing.assert_close(actual, torch.tensor(expected), atol=1e-6, rtol=0.0)


def test_k1_and_k3_have_the_kl_as_expectation():
    """Exact, by summing over a small vocabulary: sum_y p(y) k(y) = KL(p || q)."""
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    exact = (p * (p.log() - q.log())).sum().item()

    for estimator in (k1, k3):
        mean = (p * kl_estimate(p.log(), q.log(), estimator)).sum().item()
        assert mean == pytest.approx(exact, rel=1e-12)


def test_the_gradient_of_k2_is_that_of_the_kl():
    """E_p[grad k2] = grad KL(p || q) with respect to the logits, while E_p[grad k1] = 0."""
    q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).log()

    def gradient(estimator) -> torch.Tensor:
        logits = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
        logprobs = logits.log_softmax(0)
        if estimator is None:
            loss = (logprobs.exp() * (logprobs - q)).sum()
        else:
            loss = (logprobs.exp().detach() * kl_estimate(logprobs, q, estimator)).sum()
        (grad,) = torch.autograd.grad(loss, logits)
        return grad

    torch.testing.assert_close(gradient(k2), gradient(None))
    torch.testing.assert_close(gradient(k1), torch.zeros(3, dtype=torch.float64))


def test_an_estimator_that_returns_a_mean_is_refused():
    with pytest.raises(ValueError, match=r"shape \(\): expected \(3,\)"):
        kl_estimate(torch.zeros(3), torch.zeros(3), lambda log_ratio: log_ratio.mean())


@pytest.mark.parametrize("estimator", [k2, k3])
def test_k2_and_k3_are_never_negative(estimator):
    # In float32, where k3 written as exp(-l) - 1 + l is negative for tiny l.
    log_ratio = torch.cat([torch.logspace(-8, 1, 200), -torch.logspace(-8, 1, 200)])

    assert (kl_estimate(log_ratio, torch.zeros_like(log_ratio), estimator) >= 0).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("size", [1e2, 1e4, 1e30])
def test_extreme_log_ratios_stay_in_bounds_with_finite_gradients(estimator, size):
    policy = torch.tensor([size, -size], requires_grad=True)

    actual = kl_estimate(policy, torch.zeros(2), estimator, tail="clamp")
    actual.sum().backward()

    assert actual.abs().max() <= 10.0
    assert policy.grad is not None
    assert torch.isfinite(policy.grad).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_masked_tokens_get_no_value_and_no_gradient(estimator):
    policy = torch.tensor([[-1.0, float("nan")], [-2.0, -3.0]], requires_grad=True)
    reference = torch.tensor([[-2.0, -1.0], [float("nan"), -1.0]])
    mask = torch.tensor([[True, False], [False, True]])

    actual = kl_estimate(policy, reference, estimator, action_mask=mask)
    actual.sum().backward()

    assert (actual[~mask] == 0).all()
    assert policy.grad is not None
    assert (policy.grad[~mask] == 0).all()
    assert torch.isfinite(policy.grad).all()
    assert (policy.grad[mask] != 0).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients_are_right(estimator):
    policy = torch.tensor([-1.0, -2.5, -0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-1.5, -1.0, -0.1], dtype=torch.float64)

    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, reference, estimator), policy)


def test_half_precision_log_probs_are_compared_in_single():
    policy = torch.tensor([-1.0], dtype=torch.bfloat16)

    assert kl_estimate(policy, policy, k3).dtype == torch.float32


def test_an_unknown_tail_is_refused():
    with pytest.raises(ValueError, match=r"'flat'.* expected 'linear' or 'clamp'"):
        # Without the check of types at run time, which is of the tests alone.
        inspect.unwrap(kl_estimate)(torch.zeros(1), torch.zeros(1), k3, tail="flat")


def slopes(log_ratio, estimator, tail):
    """Gradient of each token's estimate by the policy's log-prob, in float64."""
    policy = log_ratio.double().clone().requires_grad_()
    kl_estimate(policy, torch.zeros_like(policy), estimator, tail=tail).sum().backward()
    return policy.grad


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_token_farther_away_is_pulled_no_less(estimator):
    """The slope never falls with the log-ratio, nor is it 0 but at equal log-probs: no token is let go."""
    log_ratio = torch.linspace(-20.0, 20.0, 4001)

    slope = slopes(log_ratio, estimator, "linear")

    assert (slope.diff() >= 0).all()
    if estimator is not k1:
        assert (slope[log_ratio < -1e-3] < 0).all()
        assert (slope[log_ratio > 1e-3] > 0).all()


def test_the_clamp_lets_go_of_the_tokens_that_are_farthest_away():
    """The slope of k3 is 1 - e^2.5 = -11.18 at -2.5, and 0 at -2.7; that of its tangent is 1 - e^2.61 = -12.61."""
    log_ratio = torch.tensor([-2.5, -2.7, -5.0, -20.0])

    clamped, linear = slopes(log_ratio, k3, "clamp"), slopes(log_ratio, k3, "linear")

    assert clamped.tolist() == pytest.approx([-11.1825, 0.0, 0.0, 0.0], abs=1e-4)
    assert linear.tolist() == pytest.approx([-11.1825, -12.6109, -12.6109, -12.6109], abs=1e-4)


@pytest.mark.parametrize(("estimator", "low", "high"), [(k2, -4.47, 4.47), (k3, -2.61, 10.99)])
@pytest.mark.parametrize("tail", ["linear", "clamp"])
def test_below_10_nats_both_tails_are_the_formula(estimator, low, high, tail):
    log_ratio = torch.linspace(low, high, 501, dtype=torch.float64)
    exact = {
        k2: log_ratio.square() / 2,
        k3: (-log_ratio).exp() - 1 + log_ratio,
    }[estimator]

    actual = kl_estimate(log_ratio, torch.zeros_like(log_ratio), estimator, tail=tail)

    torch.testing.assert_close(actual, exact, rtol=1e-12, atol=1e-12)


def test_the_tangents_by_hand():
    """k2 is 10 at sqrt(20) = 4.472136 with that slope; k3 is 10 at -2.610869 with the slope 1 - e^2.610869."""
    far = torch.tensor([-6.0, 6.0], dtype=torch.float64)

    half, exponential = (kl_estimate(far, torch.zeros(2), estimator) for estimator in (k2, k3))

    # 4.472136 * 6 - 10; 10 + 12.610869 * (6 - 2.610869), and e^-6 - 1 + 6.
    assert half.tolist() == pytest.approx([16.832816, 16.832816], abs=1e-6)
    assert exponential.tolist() == pytest.approx([52.739896, 5.002479], abs=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_value_and_slope_have_no_jump(estimator):
    log_ratio = torch.linspace(-12.0, 12.0, 240_001, dtype=torch.float64)  # 1e-4 nats apart

    value = kl_estimate(log_ratio, torch.zeros_like(log_ratio), estimator)

    # No slope is above 12.7, and no curvature (that of k3 at its edge) above e^2.62.
    assert value.diff().abs().max() <= 12.7e-4
    assert slopes(log_ratio, estimator, "linear").diff().abs().max() <= 13.8e-4


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("size", [1e2, 1e4, 1e30])
def test_extreme_log_ratios_have_finite_tangents(estimator, size):
    policy = torch.tensor([size, -size], requires_grad=True)

    actual = kl_estimate(policy, torch.zeros(2), estimator)
    actual.sum().backward()

    assert torch.isfinite(actual).all()
    assert policy.grad is not None
    assert torch.isfinite(policy.grad).all()


@pytest.mark.parametrize(("tail", "returns"), [("linear", True), ("clamp", False)])
def test_a_policy_five_nats_away_is_pulled_back(tail, returns):
    """Gradient descent on the k3 of one token, which the policy holds for e^-5 times as likely as the reference does.

    Its own samples would hardly ever show that token; data of an older policy does.
    """
    reference = torch.tensor([0.5, 0.3, 0.2]).log()
    logits = (reference + torch.tensor([-5.0, 0.0, 0.0])).requires_grad_()
    optimizer = torch.optim.SGD([logits], lr=0.05)
    for _ in range(200):
        logprobs = logits.log_softmax(0)
        loss = kl_estimate(logprobs[:1], reference[:1], k3, tail=tail).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    away = float(reference[0] - logits.detach().log_softmax(0)[0])
    if returns:
        assert abs(away) < 0.1
    else:
        assert away > 4.0  # it never moved


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (12.0, 0.0102048),  # error clipped to 0.2: 0.01 * (1 + 0.2 * 0.1024)
        (6.3, 0.01005120),  # error 0.05: 0.01 * (1 + 0.05 * 0.1024)
        (6.0, 0.01),  # at the target
        (0.0, 0.0097952),  # error clipped to -0.2
    ],
)
def test_the_coefficient_follows_the_kl_by_hand(kl, expected):
    """The first two numbers are also those of OpenRLHF 0.11.2."""
    actual = adapted_kl_coef(0.01, kl, target=6.0, num_samples=1024, horizon=10_000)

    assert actual == pytest.approx(expected, rel=1e-12)


def test_one_horizon_of_too_large_kl_raises_the_coefficient_by_about_22_percent():
    coef = 1.0
    for _ in range(100):
        coef = adapted_kl_coef(coef, 1.0, target=0.1, num_samples=100, horizon=10_000)

    assert coef == pytest.approx(math.exp(0.2), rel=1e-3)


def test_a_horizon_shorter_than_a_step_cannot_turn_the_coefficient_negative():
    # Without a bound the factor would be 1 - 0.2 * 1000 / 10 = -19, and the penalty a bonus.
    assert adapted_kl_coef(1.0, 0.0, target=1.0, num_samples=1000, horizon=10) == 0.8


@pytest.mark.parametrize("kl", [float("nan"), float("inf")])
def test_a_kl_that_is_not_finite_is_refused(kl):
    with pytest.raises(
        NonFiniteError, match="KL to the reference", check=has_code("training/kl-not-finite")
    ):
        adapted_kl_coef(0.1, kl, target=1.0, num_samples=1, horizon=10)

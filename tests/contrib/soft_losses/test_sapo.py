"""Soft adaptive policy optimization."""

import math

import pytest
import torch

from rlhf_core.contracts import LossInputs, metric_values
from rlhf_plugin_soft_losses.sapo import SapoConfig, SapoLoss, sapo_loss

TAU = {"tau_pos": 1.0, "tau_neg": 1.05}


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 1.0, -2.0),  # 4 / 1 * sigmoid(0)
        (1.0, -1.0, 2 / 1.05),
        (2.0, 1.0, -4 / (1 + math.exp(-1))),
        (2.0, -3.0, 3 * 4 / 1.05 / (1 + math.exp(-1.05))),
        (0.5, 1.0, -4 / (1 + math.exp(0.5))),
    ],
)
def test_the_loss_of_one_token_by_hand(ratio, advantage, expected):
    policy = torch.tensor([[math.log(ratio)]], dtype=torch.float64)
    advantages = torch.full_like(policy, advantage)

    result = sapo_loss(
        policy, torch.zeros_like(policy), advantages, torch.ones(1, 1, dtype=torch.bool), **TAU
    )

    assert result.loss.item() == pytest.approx(expected, rel=1e-12)


def test_the_gradient_is_the_gate_times_the_plain_one(random_step):
    """The slope of f is 4 s (1 - s) = 1 / cosh(tau (r - 1) / 2)^2."""
    step = random_step()
    mask = step.action_mask
    policy = step.policy_logprobs.clone().requires_grad_()

    result = sapo_loss(policy, step.old_logprobs, step.advantages, mask, **TAU)
    result.loss.sum().backward()

    for row, n in enumerate([6, 5, 3, 1, 0]):
        for token in range(n):
            ratio = math.exp((step.policy_logprobs - step.old_logprobs)[row, token].item())
            advantage = step.advantages[row, token].item()
            tau = 1.0 if advantage > 0 else 1.05
            gate = 1 / math.cosh(tau * (ratio - 1) / 2) ** 2
            assert result.gate[row, token].item() == pytest.approx(gate)
            assert policy.grad[row, token].item() == pytest.approx(-gate * ratio * advantage)


def test_a_flat_gate_leaves_the_plain_ratio(random_step):
    step = random_step()
    mask = step.action_mask
    policy = step.policy_logprobs.clone().requires_grad_()

    sapo_loss(
        policy, step.old_logprobs, step.advantages, mask, tau_pos=1e-5, tau_neg=1e-5
    ).loss.sum().backward()

    ratio = (step.policy_logprobs - step.old_logprobs).exp()
    torch.testing.assert_close(policy.grad, torch.where(mask, -ratio * step.advantages, 0.0))


def test_a_larger_tau_lets_the_gradient_fade_faster():
    policy = torch.full((1, 2), 1.0, requires_grad=True)
    advantages = torch.tensor([[1.0, -1.0]])

    sapo_loss(
        policy,
        torch.zeros(1, 2),
        advantages,
        torch.ones(1, 2, dtype=torch.bool),
        tau_pos=1.0,
        tau_neg=3.0,
    ).loss.sum().backward()

    good, bad = policy.grad.abs()[0]
    assert bad < good


def test_gradients_are_right(random_step):
    step = random_step(seed=1, drift=1.0)
    rest = (step.old_logprobs, step.advantages, step.action_mask)

    assert torch.autograd.gradcheck(
        lambda x: sapo_loss(x, *rest, **TAU).loss, step.policy_logprobs.clone().requires_grad_()
    )


def test_metrics_by_hand():
    inputs = LossInputs(
        policy_logprobs=torch.tensor([[0.0, math.log(3.0), 9.0]]),
        old_logprobs=torch.zeros(1, 3),
        advantages=torch.ones(1, 3),
        action_mask=torch.tensor([[True, True, False]]),
    )

    metrics = SapoLoss(SapoConfig())(inputs).metrics

    # gates 1 and 1 / cosh(1)^2 = 0.41997
    assert metric_values(metrics) == pytest.approx(
        {"policy/ratio": 2.0, "sapo/gate": (1 + 1 / math.cosh(1.0) ** 2) / 2}
    )

"""Variational sequence-level soft policy optimization."""

import math
from dataclasses import replace

import pytest
import torch

from rlhf_core.contracts import metric_values
from rlhf_plugin_sequence_losses.vespo import VespoConfig, VespoLoss, gamma_kernel, vespo_loss

DEFAULTS = {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0}
INEXACT = {"k_pos": 2.1, "lambda_pos": 3.3, "k_neg": 3.7, "lambda_neg": 1.9}  # not exact in binary


def kernel_at(weight: float, k: float, lambda_: float) -> float:
    column = torch.tensor([weight, k, lambda_], dtype=torch.float64)
    return gamma_kernel(column[0].log(), column[1], column[2]).item()


@pytest.mark.parametrize(
    ("weight", "k", "lambda_", "expected"),
    [
        (1.0, 2.0, 3.0, 1.0),
        (2.0, 2.0, 3.0, 4 * math.exp(-3)),  # 2^2 * e^(3 * (1 - 2))
        (0.5, 3.0, 2.0, 0.125 * math.e),  # 0.5^3 * e^(2 * 0.5)
        (4.0, 1.0, 0.0, 4.0),  # lambda 0 and k 1: the plain importance weight
    ],
)
def test_the_kernel_by_hand(weight, k, lambda_, expected):
    assert kernel_at(weight, k, lambda_) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("k", "lambda_"), [(2.0, 3.0), (3.0, 2.0)])
def test_the_kernel_is_largest_at_k_over_lambda_and_fades_on_both_sides(k, lambda_):
    top = k / lambda_

    assert kernel_at(top, k, lambda_) > max(
        kernel_at(top * 1.05, k, lambda_), kernel_at(top / 1.05, k, lambda_)
    )
    assert kernel_at(1e-8, k, lambda_) < 1e-14
    assert kernel_at(math.exp(20), k, lambda_) == 0.0


def test_it_equals_a_loop_over_sequences(random_step):
    step = random_step(drift=0.8)
    policy = step.policy_logprobs.clone().requires_grad_()

    result = vespo_loss(policy, step.old_logprobs, step.advantages, step.action_mask, **INEXACT)
    result.loss.sum().backward()

    for row, n in enumerate([6, 5, 3, 1, 0]):
        log_weight = sum((step.policy_logprobs - step.old_logprobs)[row, :n].tolist())
        weight = math.exp(log_weight)
        for token in range(n):
            advantage = step.advantages[row, token].item()
            k, lambda_ = (2.1, 3.3) if advantage >= 0 else (3.7, 1.9)
            kernel = weight**k * math.exp(lambda_ * (1 - weight))
            logprob = step.policy_logprobs[row, token].item()
            assert result.loss[row, token].item() == pytest.approx(
                -kernel * advantage * logprob, rel=1e-12
            )
            # The kernel has no gradient of its own.
            assert policy.grad[row, token].item() == pytest.approx(-kernel * advantage, rel=1e-12)


def test_the_weight_is_the_product_over_tokens_without_normalization():
    """Twice the tokens with the same drift each: the log of the weight doubles."""
    policy = torch.full((2, 4), 0.1)
    mask = torch.tensor([[True, True, False, False], [True] * 4])

    result = vespo_loss(policy, torch.zeros(2, 4), torch.ones(2, 4), mask, **DEFAULTS)

    torch.testing.assert_close(result.log_weight, torch.tensor([[0.2], [0.4]]))


def test_a_sequence_far_from_its_behavior_policy_is_left_alone():
    policy = torch.tensor([[-1.0, -1.0], [-9.0, -9.0]], requires_grad=True)
    old = torch.tensor([[-9.0, -9.0], [-1.0, -1.0]])
    advantages = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])

    result = vespo_loss(policy, old, advantages, torch.ones(2, 2, dtype=torch.bool), **DEFAULTS)
    result.loss.sum().backward()

    # w = e^16 and e^-16: the kernel is 0 and 2e-20
    torch.testing.assert_close(policy.grad, torch.zeros(2, 2), atol=1e-15, rtol=0.0)


def test_the_behavior_policy_is_the_one_that_the_option_names(random_step):
    step = random_step()
    by_old = VespoLoss(VespoConfig())
    by_rollout = VespoLoss(VespoConfig(behavior="rollout"))
    swapped = replace(step, old_logprobs=step.rollout_logprobs)

    torch.testing.assert_close(by_rollout(step).loss, by_old(swapped).loss)
    assert not torch.allclose(by_rollout(step).loss, by_old(step).loss)


def test_metrics_count_each_sequence_once(random_step):
    step = random_step()
    mask = step.action_mask
    sums = torch.where(mask, step.policy_logprobs - step.old_logprobs, 0.0).sum(dim=1)[:4]

    result = VespoLoss(VespoConfig())(step)

    values = metric_values(result.metrics)
    assert values["vespo/log_weight"] == pytest.approx(sums.mean().item())
    assert values["vespo/abs_log_weight"] == pytest.approx(sums.abs().mean().item())
    kernel = result.loss / (-step.advantages * step.policy_logprobs)
    assert values["vespo/kernel"] == pytest.approx(kernel[mask].mean().item())

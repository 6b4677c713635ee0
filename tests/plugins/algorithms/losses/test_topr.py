"""TOPR."""

import math

import pytest
import torch

from rlhf_core import Config
from rlhf_core.contracts import LossInputs, metric_values
from rlhf_plugin_algorithms.losses.topr import ToprLoss, topr_loss


def test_two_sequences_by_hand():
    """Both became 0.5 * 0.8 = 0.4 times as likely. The good one counts in full, the bad one by 0.4."""
    policy = torch.tensor([[0.2, 0.4], [0.2, 0.4]], dtype=torch.float64).log().requires_grad_()
    inputs = LossInputs(
        policy_logprobs=policy,
        old_logprobs=torch.full((2, 2), float("nan")),  # takes no part
        rollout_logprobs=torch.tensor([[0.4, 0.5], [0.4, 0.5]], dtype=torch.float64).log(),
        advantages=torch.tensor([[2.0, 2.0], [-2.0, -2.0]], dtype=torch.float64),
        action_mask=torch.ones(2, 2, dtype=torch.bool),
    )

    result = ToprLoss(Config())(inputs)
    result.loss.sum().backward()

    torch.testing.assert_close(policy.grad, torch.tensor([[-2.0, -2.0], [0.8, 0.8]]).double())
    assert result.loss[1, 0].item() == pytest.approx(0.8 * math.log(0.2))
    assert metric_values(result.metrics) == pytest.approx(
        {"topr/bad_weight": 0.4, "topr/log_ratio": math.log(0.4)}
    )


def test_a_bad_sequence_that_became_likelier_counts_once_and_not_more(one_token):
    inputs = one_token(0.8, 0.8, 0.2, -3.0)

    ToprLoss(Config())(inputs).loss.sum().backward()

    assert inputs.policy_logprobs.grad.item() == pytest.approx(3.0)


def test_the_ratio_is_of_the_whole_sequence_and_not_of_its_tokens():
    """Log-ratios of +1 and -1 cancel; by tokens the second would count e^-1."""
    policy = torch.tensor([[-1.0, -3.0]], dtype=torch.float64, requires_grad=True)
    rollout = torch.tensor([[-2.0, -2.0]], dtype=torch.float64)

    result = topr_loss(
        policy, rollout, torch.full_like(rollout, -1.0), torch.ones(1, 2, dtype=torch.bool)
    )
    result.loss.sum().backward()

    torch.testing.assert_close(policy.grad, torch.ones_like(rollout))


def test_it_equals_a_loop_over_tokens(step):
    inputs = step(3)
    policy, rollout, mask = inputs.policy_logprobs, inputs.rollout_logprobs, inputs.action_mask
    expected = torch.zeros_like(policy)
    for row in range(len(mask)):
        n = int(mask[row].sum())
        ratio = math.prod(math.exp(policy[row, t] - rollout[row, t]) for t in range(n))
        for t in range(n):
            advantage = inputs.advantages[row, t].item()
            weight = min(ratio, 1.0) if advantage < 0 else 1.0
            expected[row, t] = -weight * advantage * policy[row, t]

    actual = topr_loss(policy, rollout, inputs.advantages, mask).loss

    torch.testing.assert_close(actual, expected)


def test_a_bad_sequence_that_is_all_but_forgotten_is_left_alone():
    policy = torch.full((1, 50), -20.0, dtype=torch.float64, requires_grad=True)
    rollout = torch.full((1, 50), -1.0, dtype=torch.float64)

    loss = topr_loss(
        policy, rollout, torch.full_like(rollout, -5.0), torch.ones(1, 50, dtype=torch.bool)
    ).loss
    loss.sum().backward()

    assert policy.grad.abs().max() < 2e-8  # 5 e^-20


def test_good_sequences_alone_are_plain_reinforce(step):
    inputs = step(5)
    policy = inputs.policy_logprobs.clone().requires_grad_()
    good = inputs.advantages.abs()

    topr_loss(policy, inputs.rollout_logprobs, good, inputs.action_mask).loss.sum().backward()

    torch.testing.assert_close(policy.grad, -good)

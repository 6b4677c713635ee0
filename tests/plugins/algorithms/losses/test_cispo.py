"""CISPO."""

import math

import pytest
import torch

from rlhf_core.contracts import LossInputs, metric_values
from rlhf_plugin_algorithms.losses.cispo import CispoConfig, CispoLoss, cispo_loss


def columns(inputs: LossInputs):
    return inputs.policy_logprobs, inputs.old_logprobs, inputs.advantages, inputs.action_mask


@pytest.mark.parametrize(
    ("policy", "old", "advantage", "weight"),
    [
        (0.3, 0.2, 2.0, 1.5),
        (0.9, 0.1, 2.0, 5.0),  # a ratio of 9 counts as 1 + 4
        (0.9, 0.1, -2.0, 5.0),  # also for a bad token, which PPO would let through in full
        (0.02, 0.2, 2.0, 0.1),  # no lower bound by default
        (0.02, 0.2, -2.0, 0.1),
    ],
)
def test_one_token_by_hand(one_token, policy, old, advantage, weight):
    inputs = one_token(policy, old, old, advantage)

    loss = CispoLoss(CispoConfig())(inputs).loss
    loss.sum().backward()

    assert loss.item() == pytest.approx(-weight * advantage * math.log(policy))
    assert inputs.policy_logprobs.grad.item() == pytest.approx(-weight * advantage)


def test_the_lower_bound_raises_the_weight_of_a_token_that_became_rare(one_token):
    inputs = one_token(0.02, 0.2, 0.2, 1.0)

    CispoLoss(CispoConfig(clip_low=0.2))(inputs).loss.sum().backward()

    assert inputs.policy_logprobs.grad.item() == pytest.approx(-0.8)


def test_bounded_tokens_keep_their_gradient_and_are_counted():
    ratio = torch.tensor([[0.5, 1.0, 3.0, 0.9]], dtype=torch.float64)
    policy = (ratio.log() - 2).requires_grad_()
    inputs = LossInputs(
        policy_logprobs=policy,
        old_logprobs=torch.full_like(policy, -2.0),
        advantages=torch.ones_like(ratio),
        action_mask=torch.ones(1, 4, dtype=torch.bool),
    )

    result = CispoLoss(CispoConfig(clip_low=0.2, clip_high=0.5))(inputs)
    result.loss.sum().backward()

    torch.testing.assert_close(policy.grad, -torch.tensor([[0.8, 1.0, 1.5, 0.9]]).double())
    assert metric_values(result.metrics) == pytest.approx(
        {"policy/ratio": 5.4 / 4, "cispo/bounded_low": 0.25, "cispo/bounded_high": 0.25}
    )


def test_it_equals_a_loop_over_tokens(step):
    inputs = step(3)
    policy, old, advantages, mask = columns(inputs)
    expected = torch.zeros_like(policy)
    for row, token in torch.nonzero(mask).tolist():
        ratio = math.exp(policy[row, token].item() - old[row, token].item())
        weight = min(max(ratio, 0.9), 1.2)
        expected[row, token] = -weight * advantages[row, token] * policy[row, token]

    actual = cispo_loss(policy, old, advantages, mask, clip_low=0.1, clip_high=0.2).loss

    torch.testing.assert_close(actual, expected)


def test_bounds_that_are_never_reached_have_the_gradient_of_the_ratio_times_the_advantage(step):
    inputs = step(4)
    _, old, advantages, mask = columns(inputs)
    ours = inputs.policy_logprobs.clone().requires_grad_()
    theirs = inputs.policy_logprobs.clone().requires_grad_()

    cispo_loss(ours, old, advantages, mask, clip_low=1.0, clip_high=1000.0).loss.sum().backward()
    torch.where(mask, -(theirs - old).exp() * advantages, 0.0).sum().backward()

    torch.testing.assert_close(ours.grad, theirs.grad)


def test_bounds_near_zero_are_reinforce_whatever_the_old_policy(step):
    inputs = step(5)
    _, old, advantages, mask = columns(inputs)
    policy = inputs.policy_logprobs.clone().requires_grad_()

    cispo_loss(policy, old, advantages, mask, clip_low=1e-9, clip_high=1e-9).loss.sum().backward()

    torch.testing.assert_close(policy.grad, -advantages)

"""Decoupled PPO."""

import math

import pytest
import torch
from pydantic import ValidationError

from rlhf_core.contracts import LossInputs, metric_values
from rlhf_plugin_algorithms.corrections.importance import Importance, ImportanceConfig
from rlhf_plugin_algorithms.losses.decoupled_ppo import (
    DecoupledPpoConfig,
    DecoupledPpoLoss,
    decoupled_ppo_loss,
)
from rlhf_plugin_algorithms.losses.ppo import clipped_policy_loss

OPTIONS = {"clip_low": 0.2, "clip_high": 0.2, "max_weight": 2.0, "drop_beyond": True}


def columns(inputs: LossInputs):
    return (
        inputs.policy_logprobs,
        inputs.old_logprobs,
        inputs.rollout_logprobs,
        inputs.advantages,
        inputs.action_mask,
    )


@pytest.mark.parametrize(
    ("policy", "old", "rollout", "advantage", "expected"),
    [
        (0.44, 0.4, 0.4, 1.0, -1.1),  # an exact sampler: PPO
        (0.44, 0.4, 0.2, 1.0, -2.2),  # old / rollout = 2
        (0.80, 0.4, 0.2, 1.0, -2.4),  # clipped around old, not around rollout: 2 * 1.2
        (0.20, 0.4, 0.5, -1.0, 0.64),  # 0.8 * (1 - 0.2)
        (0.44, 0.4, 0.05, 1.0, 0.0),  # a weight of 8 is beyond 5: dropped
    ],
)
def test_one_token_by_hand(one_token, policy, old, rollout, advantage, expected):
    inputs = one_token(policy, old, rollout, advantage)

    loss = DecoupledPpoLoss(DecoupledPpoConfig())(inputs).loss

    assert loss.item() == pytest.approx(expected)


def test_truncating_keeps_what_dropping_loses(one_token):
    inputs = one_token(0.44, 0.4, 0.05, 1.0)

    result = DecoupledPpoLoss(DecoupledPpoConfig(beyond="truncate"))(inputs)

    assert result.loss.item() == pytest.approx(-5.5)  # 5 * 1.1
    assert metric_values(result.metrics) == pytest.approx(
        {
            "policy/ratio": 1.1,
            "decoupled/weight": 5.0,
            "decoupled/fraction_beyond": 1.0,
            "clip/fraction_low": 0.0,
            "clip/fraction_high": 0.0,
        }
    )


def test_without_a_bound_the_weight_is_the_ratio(one_token):
    inputs = one_token(0.4, 0.4, 0.004, 1.0)

    loss = DecoupledPpoLoss(DecoupledPpoConfig(max_weight=None))(inputs).loss

    assert loss.item() == pytest.approx(-100.0)


def test_truncating_without_a_bound_is_refused():
    with pytest.raises(ValidationError, match="nothing would be truncated"):
        DecoupledPpoConfig(max_weight=None, beyond="truncate")


@pytest.mark.parametrize("drop", [True, False])
def test_it_equals_a_loop_over_tokens(step, drop):
    inputs = step(3)
    policy, old, rollout, advantages, mask = columns(inputs)
    expected, beyond = torch.zeros_like(policy), 0
    for row, token in torch.nonzero(mask).tolist():
        ratio = math.exp(policy[row, token] - old[row, token])
        weight = math.exp(old[row, token] - rollout[row, token])
        if weight > 1.3:
            beyond += 1
            weight = 0.0 if drop else 1.3
        advantage = advantages[row, token].item()
        surrogate = min(ratio * advantage, min(max(ratio, 0.9), 1.2) * advantage)
        expected[row, token] = -weight * surrogate

    result = decoupled_ppo_loss(
        *columns(inputs), clip_low=0.1, clip_high=0.2, max_weight=1.3, drop_beyond=drop
    )

    assert 0 < beyond == int(result.beyond.sum())
    torch.testing.assert_close(result.loss, expected)


def test_an_exact_sampler_gives_ppo(step):
    inputs = step(4)
    policy, old, _, advantages, mask = columns(inputs)

    loss = decoupled_ppo_loss(policy, old, old, advantages, mask, **OPTIONS).loss

    ratio = (policy - old).exp()
    ppo = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    torch.testing.assert_close(loss, torch.where(mask, ppo, 0.0))


def test_gradients_are_right_and_none_flows_through_the_weight(step):
    """Log-ratios of a few hundredths, away from the bounds, where the loss has kinks."""
    inputs = step(5, drift=0.05)
    policy, old, rollout, advantages, mask = columns(inputs)
    old.requires_grad_()
    leaf = policy.clone().requires_grad_()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return decoupled_ppo_loss(x, old.detach(), rollout, advantages, mask, **OPTIONS).loss

    assert torch.autograd.gradcheck(loss, leaf)
    result = decoupled_ppo_loss(leaf.detach(), old, rollout, advantages, mask, **OPTIONS)
    assert not result.weights.requires_grad


@pytest.mark.parametrize(("mode", "drop"), [("truncate", False), ("mask", True)])
def test_it_is_ppo_with_a_correction_of_tokens(step, mode, drop):
    inputs = step(6)
    policy, old, rollout, advantages, mask = columns(inputs)
    clip = {"clip_low": 0.2, "clip_high": 0.2}

    correction = Importance(ImportanceConfig(mode=mode, high=1.3))(old, rollout, mask)
    ppo = clipped_policy_loss(policy, old, advantages, mask, **clip).loss
    expected = torch.where(correction.keep, correction.weights * ppo, 0.0)
    actual = decoupled_ppo_loss(
        policy, old, rollout, advantages, mask, **clip, max_weight=1.3, drop_beyond=drop
    )

    assert actual.beyond.any()
    torch.testing.assert_close(actual.loss, torch.where(mask, expected, 0.0))

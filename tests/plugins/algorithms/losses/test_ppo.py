"""The clipped policy loss."""

import math

import pytest
import torch

from rlhf_core.contracts import LossInputs, metric_values
from rlhf_core.math import aggregate
from rlhf_plugin_algorithms.losses.ppo import PpoLoss, PpoLossConfig, clipped_policy_loss

NAN = float("nan")
PPO = {"clip_low": 0.2, "clip_high": 0.2}


def loss_at(ratio: float, advantage: float, **options: float | None) -> float:
    """The loss of one token whose probability changed by ``ratio``."""
    result = clipped_policy_loss(
        torch.tensor([[math.log(ratio)]], dtype=torch.float64),
        torch.zeros(1, 1, dtype=torch.float64),
        torch.tensor([[advantage]], dtype=torch.float64),
        torch.ones(1, 1, dtype=torch.bool),
        **{**PPO, **options},
    )
    return result.loss.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "expected"),
    [
        (1.0, 2.0, None, -2.0),
        (1.1, 1.0, None, -1.1),
        (3.0, 1.0, None, -1.2),  # not more than 1 + 0.2
        (3.0, -1.0, None, 3.0),  # moving the wrong way is punished in full
        (3.0, -1.0, 2.0, 2.0),  # ... but with a dual clip only up to 2
        (3.0, 1.0, 2.0, -1.2),  # which leaves good tokens alone
        (0.5, -1.0, None, 0.8),  # not less than 1 - 0.2
        (0.5, 1.0, None, -0.5),
    ],
)
def test_the_loss_of_one_token_by_hand(ratio, advantage, dual_clip, expected):
    """The numbers at ratios 3 and 0.5 are also those of OpenRLHF 0.11.2."""
    assert loss_at(ratio, advantage, dual_clip=dual_clip) == pytest.approx(expected, rel=1e-12)


def test_clip_higher_moves_only_the_upper_bound():
    assert loss_at(3.0, 1.0, clip_high=0.28) == pytest.approx(-1.28, rel=1e-12)
    assert loss_at(0.5, -1.0, clip_high=0.28) == pytest.approx(0.8, rel=1e-12)
    assert loss_at(0.5, -1.0, clip_low=0.3) == pytest.approx(0.7, rel=1e-12)


def inputs_of(
    policy: torch.Tensor,
    old: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> LossInputs:
    return LossInputs(
        policy_logprobs=policy,
        old_logprobs=old,
        advantages=advantages,
        action_mask=torch.ones_like(policy, dtype=torch.bool) if mask is None else mask,
    )


def test_a_batch_and_its_metrics_by_hand():
    """The aggregated loss and the clipped share are also those of OpenRLHF 0.11.2."""
    policy = torch.tensor([[0.5, 0.4], [0.3, 0.6]]).log()
    old = torch.tensor([[0.4, 0.4], [0.2, 0.6]]).log()
    advantages = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])

    result = PpoLoss(PpoLossConfig())(inputs_of(policy, old, advantages))

    # ratios 1.25, 1, 1.5, 1: losses -1.2 (clipped high), -1, 1.5, 1; their mean is 0.3 / 4
    torch.testing.assert_close(result.loss, torch.tensor([[-1.2, -1.0], [1.5, 1.0]]))
    mean = aggregate(
        result.loss,
        torch.ones(2, 2, dtype=torch.bool),
        "token-mean",
        num_actions=4,
        num_sequences=2,
        max_actions=2,
    )
    assert mean.item() == pytest.approx(0.075, abs=1e-6)
    assert metric_values(result.metrics) == pytest.approx(
        {"policy/ratio": 4.75 / 4, "clip/fraction_low": 0.0, "clip/fraction_high": 0.25}
    )


def test_each_kind_of_clipping_is_counted_once():
    policy = torch.tensor([[0.5, 1.5, 5.0, 0.5, 1.5, 9.0]]).log()
    advantages = torch.tensor([[-1.0, 1.0, -1.0, 1.0, -1.0, NAN]])
    mask = torch.tensor([[True] * 5 + [False]])
    loss = PpoLoss(PpoLossConfig(dual_clip=3.0))

    metrics = loss(inputs_of(policy, torch.zeros(1, 6), advantages, mask)).metrics

    # Ratio 0.5 with A < 0 is clipped low, 1.5 with A > 0 high, 5 with A < 0 by the dual clip; the rest is not clipped.
    assert metric_values(metrics) == pytest.approx(
        {
            "policy/ratio": 9.0 / 5,
            "clip/fraction_low": 0.2,
            "clip/fraction_high": 0.2,
            "clip/fraction_dual": 0.2,
        }
    )


def test_clipped_tokens_get_no_gradient():
    policy = torch.tensor([[0.5, 1.5, 5.0, 0.5, 1.5]]).log().requires_grad_()
    advantages = torch.tensor([[-1.0, 1.0, -1.0, 1.0, -1.0]])

    result = clipped_policy_loss(
        policy,
        torch.zeros(1, 5),
        advantages,
        torch.ones(1, 5, dtype=torch.bool),
        **PPO,
        dual_clip=3.0,
    )
    result.loss.sum().backward()

    # Elsewhere the gradient is -ratio * A.
    assert policy.grad is not None
    torch.testing.assert_close(policy.grad, torch.tensor([[0.0, 0.0, 0.0, -0.5, 1.5]]))
    clipped = result.clipped_low | result.clipped_high | result.clipped_dual
    assert clipped.tolist() == [[True, True, True, False, False]]


def test_at_ratio_one_the_gradient_is_that_of_reinforce():
    generator = torch.Generator().manual_seed(0)
    policy = torch.randn(3, 4, generator=generator).requires_grad_()
    advantages = torch.randn(3, 4, generator=generator)
    mask = torch.ones(3, 4, dtype=torch.bool)

    result = clipped_policy_loss(policy, policy.detach(), advantages, mask, **PPO)
    result.loss.sum().backward()

    assert (result.ratio == 1).all()
    torch.testing.assert_close(policy.grad, -advantages)


def test_bounds_that_are_never_reached_leave_the_ratio_times_the_advantage():
    generator = torch.Generator().manual_seed(1)
    policy, old, advantages = torch.randn(3, 3, 4, generator=generator)
    mask = torch.ones(3, 4, dtype=torch.bool)

    result = clipped_policy_loss(
        policy, old, advantages, mask, clip_low=1.0, clip_high=1e6, dual_clip=1e6
    )

    torch.testing.assert_close(result.loss, -(policy - old).exp() * advantages)


def test_it_equals_a_loop_over_tokens():
    generator = torch.Generator().manual_seed(2)
    policy, old, advantages = torch.randn(3, 5, 6, dtype=torch.float64, generator=generator)
    lengths = torch.tensor([6, 5, 3, 1, 0])
    mask = torch.arange(6) < lengths[:, None]

    expected = torch.zeros(5, 6, dtype=torch.float64)
    for row in range(5):
        for token in range(int(lengths[row])):
            ratio = math.exp(policy[row, token].item() - old[row, token].item())
            advantage = advantages[row, token].item()
            surrogate = min(ratio * advantage, min(max(ratio, 0.9), 1.3) * advantage)
            if advantage < 0:
                surrogate = max(surrogate, 1.5 * advantage)
            expected[row, token] = -surrogate

    actual = clipped_policy_loss(
        policy, old, advantages, mask, clip_low=0.1, clip_high=0.3, dual_clip=1.5
    )
    torch.testing.assert_close(actual.loss, expected)


@pytest.mark.parametrize("dual_clip", [None, 2.0])
def test_gradients_are_right(dual_clip):
    generator = torch.Generator().manual_seed(3)
    # Away from the bounds, where the loss has kinks.
    old, advantages = torch.randn(2, 2, 6, dtype=torch.float64, generator=generator)
    ratio = torch.tensor([0.3, 0.9, 1.1, 1.7, 3.0, 0.6], dtype=torch.float64)
    policy = (old + ratio.log()).requires_grad_()
    mask = torch.tensor([[True] * 6, [True] * 3 + [False] * 3])

    assert torch.autograd.gradcheck(
        lambda x: clipped_policy_loss(x, old, advantages, mask, **PPO, dual_clip=dual_clip).loss,
        policy,
    )


@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_nan_at_padding_has_no_effect_on_value_or_gradient(dual_clip):
    mask = torch.tensor([[True, True, False], [True, False, False]])
    generator = torch.Generator().manual_seed(4)
    columns = torch.randn(3, 2, 3, generator=generator)
    policy, old, advantages = torch.where(mask, columns, NAN)
    policy.requires_grad_()
    loss = PpoLoss(PpoLossConfig(dual_clip=dual_clip))

    dirty = loss(inputs_of(policy, old, advantages, mask))
    dirty.loss.sum().backward()
    clean = loss(inputs_of(*torch.where(mask, columns, 0.0), mask))

    torch.testing.assert_close(dirty.loss, clean.loss)
    assert metric_values(dirty.metrics) == metric_values(clean.metrics)
    assert policy.grad is not None
    assert torch.isfinite(policy.grad).all()
    assert (policy.grad[~mask] == 0).all()


@pytest.mark.parametrize("gap", [50.0, 1e4, -1e4])
@pytest.mark.parametrize("advantage", [10.0, -10.0])
def test_extreme_log_probs_give_finite_losses_and_gradients(gap, advantage):
    policy = torch.tensor([[gap]], requires_grad=True)

    result = clipped_policy_loss(
        policy,
        torch.zeros(1, 1),
        torch.tensor([[advantage]]),
        torch.ones(1, 1, dtype=torch.bool),
        **PPO,
    )
    result.loss.sum().backward()

    assert torch.isfinite(result.loss).all()
    assert policy.grad is not None
    assert torch.isfinite(policy.grad).all()


def test_more_padding_changes_nothing():
    generator = torch.Generator().manual_seed(5)
    columns = torch.randn(3, 2, 3, generator=generator)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    wide = torch.nn.functional.pad(columns, (0, 2), value=NAN)

    narrow_loss = clipped_policy_loss(*columns, mask, **PPO).loss
    wide_loss = clipped_policy_loss(*wide, torch.nn.functional.pad(mask, (0, 2)), **PPO).loss

    torch.testing.assert_close(wide_loss[:, :3], narrow_loss)
    assert (wide_loss[:, 3:] == 0).all()


def test_arguments_are_left_as_they_are():
    columns = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(6))
    before = columns.clone()

    clipped_policy_loss(*columns, torch.ones(2, 3, dtype=torch.bool), **PPO, dual_clip=2.0)

    assert torch.equal(columns, before)

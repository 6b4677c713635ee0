"""Length-unbiased sequence policy optimization."""

import math

import pytest
import torch

from rlhf_core.contracts import LossInputs, metric_values
from rlhf_core.math import aggregate
from rlhf_plugin_sequence_losses.luspo import LuspoConfig, LuspoLoss, luspo_loss

CLIP = {"clip_low": 0.05, "clip_high": 0.1}


def aggregated(loss: torch.Tensor, mask: torch.Tensor, mode: str, max_actions: int = 1):
    return aggregate(
        loss,
        mask,
        mode,
        num_actions=int(mask.sum()),
        num_sequences=len(mask),
        max_actions=max_actions,
    )


@pytest.mark.parametrize(
    ("advantage", "log_ratios", "expected"),
    [
        (2.0, [0.3, -0.1, -0.05], -2 * math.exp(0.05)),  # mean 0.05: 1.051, inside
        (2.0, [0.6, 0.0, 0.0], -2 * 1.1),  # mean 0.2: 1.22, clipped
        (-2.0, [0.6, 0.0, 0.0], 2 * math.exp(0.2)),  # the wrong way: in full
        (-2.0, [-0.6, 0.0, 0.0], 2 * 0.95),  # mean -0.2: 0.82, clipped
        (2.0, [-0.6, 0.0, 0.0], -2 * math.exp(-0.2)),
    ],
)
def test_a_sequence_by_hand(advantage, log_ratios, expected):
    policy = torch.tensor([log_ratios], dtype=torch.float64)
    mask = torch.ones_like(policy, dtype=torch.bool)

    result = luspo_loss(
        policy, torch.zeros_like(policy), torch.full_like(policy, advantage), mask, **CLIP
    )

    torch.testing.assert_close(result.loss, torch.full_like(policy, expected))


def published_loss(policy, old, advantages, mask) -> torch.Tensor:
    """min(s A, clip(s) A) times the length, averaged over sequences; the advantage is the row's first."""
    losses = []
    for row in range(len(policy)):
        n = int(mask[row].sum())
        if n == 0:
            losses.append(policy.sum() * 0)
            continue
        advantage = advantages[row, 0]
        ratio = (policy[row, :n] - old[row, :n]).mean().exp()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.95, 1.1) * advantage)
        losses.append(-surrogate * n)
    return torch.stack(losses).mean()


@pytest.mark.parametrize("seed", range(4))
def test_with_one_advantage_per_row_value_and_gradient_are_the_published_ones(random_step, seed):
    step = random_step(seed, one_advantage=True)
    ours = step.policy_logprobs.clone().requires_grad_()
    theirs = step.policy_logprobs.clone().requires_grad_()
    rest = (step.old_logprobs, step.advantages, step.action_mask)

    loss = luspo_loss(ours, *rest, **CLIP).loss
    actual = aggregated(loss, step.action_mask, "seq-mean-token-sum-norm", max_actions=1)
    expected = published_loss(theirs, *rest)
    actual.backward()
    expected.backward()

    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_averaged_over_tokens_it_is_gspo(random_step):
    step = random_step(one_advantage=True)
    mask = step.action_mask

    loss = luspo_loss(step.policy_logprobs, step.old_logprobs, step.advantages, mask, **CLIP).loss

    lengths = mask.sum(dim=1).clamp(min=1)
    log_ratio = torch.where(mask, step.policy_logprobs - step.old_logprobs, 0.0)
    ratio = (log_ratio.sum(dim=1) / lengths).exp()
    advantage = torch.where(mask.any(dim=1), step.advantages[:, 0], 0.0)
    gspo = -torch.minimum(ratio * advantage, ratio.clamp(0.95, 1.1) * advantage).mean()
    torch.testing.assert_close(aggregated(loss, mask, "seq-mean-token-mean"), gspo)


def test_a_token_of_a_long_row_weighs_as_much_as_one_of_a_short_row():
    policy = torch.zeros(2, 4, requires_grad=True)
    mask = torch.tensor([[True] * 4, [True] + [False] * 3])

    loss = luspo_loss(policy, torch.zeros(2, 4), torch.ones(2, 4), mask, **CLIP).loss
    aggregated(loss, mask, "seq-mean-token-sum-norm", max_actions=4).backward()

    expected = torch.where(mask, -1 / 8, 0.0)
    torch.testing.assert_close(policy.grad, expected)


@pytest.mark.parametrize(("log_ratio", "advantage"), [(0.07, 1.0), (-0.04, -1.0)])
def test_a_sequence_just_within_its_own_bound_keeps_its_gradient(log_ratio, advantage):
    """1.07 is beyond 1 + clip_low and 0.96 is within 1 - clip_low, so swapped bounds would show."""
    policy = torch.full((1, 2), log_ratio, dtype=torch.float64, requires_grad=True)
    advantages = torch.full_like(policy, advantage)

    result = luspo_loss(
        policy, torch.zeros(1, 2), advantages, torch.ones(1, 2, dtype=torch.bool), **CLIP
    )
    result.loss.sum().backward()

    expected = torch.full_like(policy, -math.exp(log_ratio) * advantage)
    torch.testing.assert_close(policy.grad, expected)


@pytest.mark.parametrize(("log_ratio", "advantage"), [(0.11, 1.0), (-0.07, -1.0)])
def test_a_sequence_just_beyond_its_own_bound_gets_none(log_ratio, advantage):
    policy = torch.full((1, 2), log_ratio, requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)

    result = luspo_loss(policy, torch.zeros(1, 2), torch.full((1, 2), advantage), mask, **CLIP)
    result.loss.sum().backward()

    assert (policy.grad == 0).all()


def test_a_clipped_sequence_gets_no_gradient_and_is_counted():
    policy = torch.tensor([[0.4, 0.4], [-0.4, -0.4], [0.4, 0.4]], requires_grad=True)
    inputs = LossInputs(
        policy_logprobs=policy,
        old_logprobs=torch.zeros(3, 2),
        advantages=torch.tensor([[1.0, 1.0], [-1.0, -1.0], [-1.0, -1.0]]),
        action_mask=torch.tensor([[True, True], [True, False], [True, True]]),
    )

    result = LuspoLoss(LuspoConfig())(inputs)
    result.loss.sum().backward()

    up = math.exp(0.4)
    torch.testing.assert_close(policy.grad, torch.tensor([[0.0, 0.0], [0.0, 0.0], [up, up]]))
    assert metric_values(result.metrics) == pytest.approx(
        {
            "policy/sequence_ratio": (4 * up + math.exp(-0.4)) / 5,
            "clip/fraction_low": 1 / 5,
            "clip/fraction_high": 2 / 5,
        }
    )

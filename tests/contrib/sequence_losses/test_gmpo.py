"""Geometric-mean policy optimization."""

import math

import pytest
import torch

from rlhf_core.contracts import LossInputs, metric_values
from rlhf_core.math import aggregate
from rlhf_plugin_sequence_losses.gmpo import GmpoConfig, GmpoLoss, gmpo_loss

CLIP = {"clip_low": 0.2, "clip_high": 0.3}


def of_sequences(loss: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The step's loss with the aggregation that the paper has."""
    return aggregate(
        loss,
        mask,
        "seq-mean-token-mean",
        num_actions=int(mask.sum()),
        num_sequences=len(mask),
        max_actions=mask.shape[1],
    )


@pytest.mark.parametrize(
    ("advantage", "log_ratios", "expected"),
    [
        # A > 0: 0.5 counts as 0.3, -0.9 in full; mean (0.3 - 0.9 + 0.3) / 3
        (2.0, [0.5, -0.9, 0.3], -2 * math.exp(-0.1)),
        # A < 0: 0.5 in full, -0.9 counts as -0.2; mean (0.5 - 0.2 + 0.3) / 3
        (-2.0, [0.5, -0.9, 0.3], 2 * math.exp(0.2)),
        (1.0, [0.0, 0.0, 0.0], -1.0),
    ],
)
def test_a_sequence_by_hand(advantage, log_ratios, expected):
    policy = torch.tensor([log_ratios], dtype=torch.float64)
    advantages = torch.full_like(policy, advantage)
    mask = torch.ones_like(policy, dtype=torch.bool)

    result = gmpo_loss(policy, torch.zeros_like(policy), advantages, mask, **CLIP)

    torch.testing.assert_close(result.loss, torch.full_like(policy, expected))


def published_loss(policy, old, advantages, mask) -> torch.Tensor:
    """-A * exp(mean clipped log-ratio), averaged over sequences, in a loop; the advantage is the row's first."""
    losses = []
    for row in range(len(policy)):
        n = int(mask[row].sum())
        if n == 0:
            losses.append(policy.sum() * 0)
            continue
        advantage = advantages[row, 0]
        terms = []
        for token in range(n):
            log_ratio = policy[row, token] - old[row, token]
            if advantage >= 0:
                terms.append(torch.minimum(log_ratio, log_ratio.new_tensor(0.3)))
            else:
                terms.append(torch.maximum(log_ratio, log_ratio.new_tensor(-0.2)))
        losses.append(-advantage * torch.stack(terms).mean().exp())
    return torch.stack(losses).mean()


@pytest.mark.parametrize("seed", range(4))
def test_with_one_advantage_per_row_value_and_gradient_are_the_published_ones(random_step, seed):
    step = random_step(seed, one_advantage=True)
    ours = step.policy_logprobs.clone().requires_grad_()
    theirs = step.policy_logprobs.clone().requires_grad_()
    rest = (step.old_logprobs, step.advantages, step.action_mask)

    actual = of_sequences(gmpo_loss(ours, *rest, **CLIP).loss, step.action_mask)
    expected = published_loss(theirs, *rest)
    actual.backward()
    expected.backward()

    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_bounds_that_are_never_reached_give_the_unclipped_geometric_mean(random_step):
    step = random_step(one_advantage=True)
    mask = step.action_mask
    log_ratio = step.policy_logprobs - step.old_logprobs

    result = gmpo_loss(
        step.policy_logprobs,
        step.old_logprobs,
        step.advantages,
        mask,
        clip_low=20.0,
        clip_high=20.0,
    )

    for row, n in enumerate([6, 5, 3, 1]):
        product = log_ratio[row, :n].exp().prod()
        expected = -step.advantages[row, :n] * product ** (1 / n)
        torch.testing.assert_close(result.loss[row, :n], expected)


def test_a_clipped_token_gets_no_gradient_but_stays_in_the_mean():
    policy = torch.tensor([[0.9, 0.1]], dtype=torch.float64, requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)

    result = gmpo_loss(policy, torch.zeros(1, 2), torch.ones(1, 2), mask, **CLIP)
    result.loss.sum().backward()

    # s = exp((0.3 + 0.1) / 2)
    ratio = math.exp(0.2)
    torch.testing.assert_close(policy.grad, torch.tensor([[0.0, -ratio]], dtype=torch.float64))
    torch.testing.assert_close(result.ratio, torch.full((1, 2), ratio, dtype=torch.float64))


def test_each_token_keeps_its_own_advantage():
    """With the gradient of the geometric mean itself both tokens would get the row's mean advantage, 0."""
    policy = torch.zeros(1, 2, requires_grad=True)
    advantages = torch.tensor([[1.0, -1.0]])

    result = gmpo_loss(
        policy, torch.zeros(1, 2), advantages, torch.ones(1, 2, dtype=torch.bool), **CLIP
    )
    result.loss.sum().backward()

    torch.testing.assert_close(policy.grad, -advantages)


def test_each_side_of_clipping_is_counted():
    inputs = LossInputs(
        policy_logprobs=torch.tensor([[0.5, -0.5, 0.0, 9.0], [0.5, -0.5, -0.9, 9.0]]),
        old_logprobs=torch.zeros(2, 4),
        advantages=torch.tensor([[1.0] * 4, [-1.0] * 4]),
        action_mask=torch.tensor([[True, True, True, False]] * 2),
    )

    metrics = GmpoLoss(GmpoConfig())(inputs).metrics

    # Good row: 0.5 counts as 0.4, mean -1/30. Bad row: both low ones count as -0.4, mean -1/10.
    assert metric_values(metrics) == pytest.approx(
        {
            "policy/sequence_ratio": (math.exp(-1 / 30) + math.exp(-0.1)) / 2,
            "clip/fraction_low": 2 / 6,
            "clip/fraction_high": 1 / 6,
        }
    )

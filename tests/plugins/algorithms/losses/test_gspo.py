"""GSPO and GSPO-token."""

import math

import pytest
import torch

from rlhf_core.contracts import LossInputs, metric_values
from rlhf_core.math import aggregate
from rlhf_plugin_algorithms import rlhf_policy_losses
from rlhf_plugin_algorithms.kl.k1 import k1
from rlhf_plugin_algorithms.losses.gspo import (
    GspoConfig,
    GspoLoss,
    GspoTokenLoss,
    gspo_loss,
    gspo_token_loss,
)
from rlhf_testing.conformance import parametrize_checks

CLIP = {"clip_low": 0.05, "clip_high": 0.1}
BOTH = pytest.mark.parametrize("loss_of", [gspo_loss, gspo_token_loss])
COMPONENTS = {component.name: component for component in rlhf_policy_losses()}


@parametrize_checks(
    "rlhf_policy_losses",
    {"gspo": COMPONENTS["gspo"]},
    expected_failures={
        "check_at_ratio_one_it_is_reinforce": "tokens of a row share the mean of its advantages"
    },
)
def test_contract_of_gspo(check, subject):
    check(subject)


@parametrize_checks(
    "rlhf_policy_losses",
    {"gspo_token": COMPONENTS["gspo_token"]},
    expected_failures={
        "check_gradient_is_the_derivative": "the gradient goes through each token's own log-prob"
    },
)
def test_contract_of_gspo_token(check, subject):
    check(subject)


def case(seed: int = 0, *, one_advantage: bool = True, drift: float = 0.2):
    """Ragged rows in float64, one of them empty: policy, old, advantages, mask."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(6) < torch.tensor([6, 5, 3, 1, 0])[:, None]
    old, noise, advantages = torch.randn(3, 5, 6, dtype=torch.float64, generator=generator)
    if one_advantage:
        advantages = advantages[:, :1].expand(5, 6).clone()
    return old - 2 + drift * noise, old - 2, advantages, mask


def mean_over_sequences(loss: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return aggregate(
        loss,
        mask,
        "seq-mean-token-mean",
        num_actions=int(mask.sum()),
        num_sequences=len(mask),
        max_actions=mask.shape[1],
    )


@pytest.mark.parametrize("component", [GspoLoss, GspoTokenLoss])
def test_the_numbers_of_openrlhf(component):
    """OpenRLHF 0.11.2 with its bounds of 0.2: loss 0.053355, clipped 0, ratios 1.118034 and 1.224745."""
    policy = torch.tensor([[0.5, 0.4], [0.3, 0.6]], dtype=torch.float64).log()
    old = torch.tensor([[0.4, 0.4], [0.2, 0.6]], dtype=torch.float64).log()
    mask = torch.ones(2, 2, dtype=torch.bool)
    inputs = LossInputs(
        policy_logprobs=policy,
        old_logprobs=old,
        advantages=torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64),
        action_mask=mask,
    )

    result = component(GspoConfig(clip_low=0.2, clip_high=0.2))(inputs)

    # sqrt(1.25 * 1) and sqrt(1.5 * 1). The good sequence is within 1.2; the bad one is outside on the side where its
    # loss counts in full: (-1.118034 + 1.224745) / 2.
    rows = torch.tensor([[-1.118034] * 2, [1.224745] * 2], dtype=torch.float64)
    torch.testing.assert_close(result.loss, rows, atol=1e-6, rtol=0)
    assert mean_over_sequences(result.loss, mask).item() == pytest.approx(0.053355, abs=1e-6)
    metrics = metric_values(result.metrics)
    assert metrics["policy/sequence_ratio"] == pytest.approx((1.118034 + 1.224745) / 2, abs=1e-6)
    assert metrics["clip/fraction_low"] == metrics["clip/fraction_high"] == 0.0
    # Their ppo_kl, mean of old - policy over tokens, is our k1 with the policies exchanged.
    assert k1(old - policy).mean().item() == pytest.approx(-0.157152, abs=1e-6)


@BOTH
@pytest.mark.parametrize(
    ("log_ratios", "advantage", "expected"),
    [
        ([0.03, 0.05], 2.0, -2.0 * math.exp(0.04)),
        ([0.3, 0.1], 2.0, -2.0 * 1.1),  # the mean 0.2 is a ratio of 1.22: clipped to 1 + 0.1
        ([-0.3, -0.1], -2.0, 2.0 * 0.95),  # 0.82, clipped to 1 - 0.05
        ([0.3, 0.1], -2.0, 2.0 * math.exp(0.2)),  # the wrong way: in full
        ([0.5, -0.5], 2.0, -2.0),  # tokens far apart whose ratios cancel are not clipped
    ],
)
def test_a_sequence_by_hand(loss_of, log_ratios, advantage, expected):
    policy = torch.tensor([log_ratios], dtype=torch.float64)
    advantages = torch.full_like(policy, advantage)

    loss = loss_of(
        policy, torch.zeros_like(policy), advantages, torch.ones(1, 2, dtype=torch.bool), **CLIP
    ).loss

    torch.testing.assert_close(loss, torch.full_like(policy, expected))


@BOTH
@pytest.mark.parametrize("seed", range(4))
def test_with_one_advantage_per_row_value_and_gradient_are_the_published_ones(loss_of, seed):
    policy, old, advantages, mask = case(seed)
    ours, theirs = policy.clone().requires_grad_(), policy.clone().requires_grad_()

    actual = mean_over_sequences(loss_of(ours, old, advantages, mask, **CLIP).loss, mask)
    losses = []
    for row in range(5):
        n = int(mask[row].sum())
        if n:
            ratio = ((theirs[row, :n] - old[row, :n]).sum() / n).exp()
            advantage = advantages[row, 0]
            losses.append(-torch.min(ratio * advantage, ratio.clamp(0.95, 1.1) * advantage))
    expected = torch.stack(losses).sum() / 5
    actual.backward()
    expected.backward()

    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_both_have_the_same_value_also_for_several_advantages():
    step = case(one_advantage=False)

    a, b = gspo_loss(*step, **CLIP), gspo_token_loss(*step, **CLIP)

    for first, second in zip(a, b, strict=True):
        torch.testing.assert_close(first, second)


def test_only_the_token_variant_credits_each_token_with_its_own_advantage():
    policy = torch.zeros(1, 2, dtype=torch.float64)
    advantages = torch.tensor([[3.0, -1.0]], dtype=torch.float64)
    grads = []
    for loss_of in (gspo_loss, gspo_token_loss):
        leaf = policy.clone().requires_grad_()
        loss_of(
            leaf, policy, advantages, torch.ones(1, 2, dtype=torch.bool), **CLIP
        ).loss.sum().backward()
        grads.append(leaf.grad)

    # The mean advantage is 1; at s = 1 the token variant is REINFORCE.
    torch.testing.assert_close(grads[0], torch.full_like(policy, -1.0))
    torch.testing.assert_close(grads[1], -advantages)


@BOTH
def test_at_ratio_one_the_gradient_is_that_of_reinforce(loss_of):
    policy, _, advantages, mask = case()
    leaf = policy.clone().requires_grad_()

    result = loss_of(leaf, policy, advantages, mask, clip_low=3e-4, clip_high=4e-4)
    result.loss.sum().backward()

    assert (result.ratio[mask] == 1).all()
    torch.testing.assert_close(leaf.grad, torch.where(mask, -advantages, 0.0))


@BOTH
def test_rows_of_one_token_are_ppo(loss_of):
    policy, old, advantages = (column.reshape(-1, 1) for column in case(2, one_advantage=False)[:3])
    mask = torch.ones_like(policy, dtype=torch.bool)

    loss = loss_of(policy, old, advantages, mask, **CLIP).loss

    ratio = (policy - old).exp()
    ppo = -torch.minimum(ratio * advantages, ratio.clamp(0.95, 1.1) * advantages)
    torch.testing.assert_close(loss, ppo)


@BOTH
def test_bounds_that_are_never_reached_leave_the_ratio_times_the_advantage(loss_of):
    policy, old, advantages, mask = case(3)

    result = loss_of(policy, old, advantages, mask, clip_low=1.0, clip_high=1e6)

    torch.testing.assert_close(result.loss, torch.where(mask, -result.ratio * advantages, 0.0))
    assert not (result.clipped_low | result.clipped_high).any()


@BOTH
def test_a_clipped_sequence_gets_no_gradient_and_is_counted(loss_of):
    policy = torch.tensor([[0.3, 0.1], [-0.3, -0.1], [0.3, 0.1]], requires_grad=True)
    advantages = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [-1.0, -1.0]])
    mask = torch.tensor([[True, True], [True, False], [True, True]])

    result = loss_of(policy, torch.zeros(3, 2), advantages, mask, **CLIP)
    result.loss.sum().backward()

    assert result.clipped_high.tolist() == [[True, True], [False, False], [False, False]]
    assert result.clipped_low.tolist() == [[False, False], [True, False], [False, False]]
    assert policy.grad[:2].eq(0).all()
    torch.testing.assert_close(policy.grad[2], torch.full((2,), math.exp(0.2)))


def test_gradients_of_gspo_are_right():
    policy, old, advantages, mask = case(4, one_advantage=False)
    leaf = policy.clone().requires_grad_()

    assert torch.autograd.gradcheck(
        lambda x: gspo_loss(x, old, advantages, mask, **CLIP).loss, leaf
    )


@BOTH
def test_a_row_does_not_depend_on_the_others(loss_of):
    policy, old, advantages, mask = case(5)
    order = torch.tensor([3, 0, 4, 2, 1])

    whole = loss_of(policy, old, advantages, mask, **CLIP).loss
    permuted = loss_of(policy[order], old[order], advantages[order], mask[order], **CLIP).loss
    alone = loss_of(policy[2:3, :3], old[2:3, :3], advantages[2:3, :3], mask[2:3, :3], **CLIP).loss

    torch.testing.assert_close(permuted, whole[order], rtol=0, atol=0)
    torch.testing.assert_close(alone, whole[2:3, :3])


@BOTH
@pytest.mark.parametrize("extra", [0, 3])
def test_what_stands_at_padding_has_no_effect(loss_of, extra):
    policy, old, advantages, mask = case(6)
    wide = torch.nn.functional.pad(mask, (0, extra))
    dirty = [
        torch.where(wide, torch.nn.functional.pad(column, (0, extra)), float("nan"))
        for column in (policy, old, advantages)
    ]
    dirty[0].requires_grad_()
    clean = policy.clone().requires_grad_()

    dirty_loss = loss_of(*dirty, wide, **CLIP).loss
    clean_loss = loss_of(clean, old, advantages, mask, **CLIP).loss
    dirty_loss.sum().backward()
    clean_loss.sum().backward()

    torch.testing.assert_close(dirty_loss[:, :6], clean_loss)
    assert (dirty_loss[:, 6:] == 0).all()
    torch.testing.assert_close(dirty[0].grad[:, :6], clean.grad)
    assert (dirty[0].grad[~wide] == 0).all()


@BOTH
@pytest.mark.parametrize("gap", [100.0, 1e4, -1e4])
@pytest.mark.parametrize("advantage", [10.0, -10.0])
def test_extreme_log_probs_give_finite_losses_and_gradients(loss_of, gap, advantage):
    policy = torch.full((1, 2), gap, requires_grad=True)

    loss = loss_of(
        policy,
        torch.zeros(1, 2),
        torch.full((1, 2), advantage),
        torch.ones(1, 2, dtype=torch.bool),
        **CLIP,
    ).loss
    loss.sum().backward()

    assert torch.isfinite(loss).all()
    assert torch.isfinite(policy.grad).all()

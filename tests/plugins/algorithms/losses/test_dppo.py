"""DPPO."""

import math

import pytest
import torch

from rlhf_core.contracts import metric_values
from rlhf_plugin_algorithms.losses.dppo import DppoConfig, DppoLoss, binary_kl, binary_tv, dppo_loss


def logs(*probs: float) -> torch.Tensor:
    return torch.tensor(probs, dtype=torch.float64).log()


def test_divergences_by_hand():
    policy, old = logs(0.2, 0.6, 0.5), logs(0.5, 0.4, 0.5)

    # 0.5 log(0.5/0.2) + 0.5 log(0.5/0.8) = 0.458145 - 0.235002; 0.4 log(0.4/0.6) + 0.6 log(0.6/0.4) = 0.081093
    expected_kl = torch.tensor([0.223144, 0.081093, 0.0], dtype=torch.float64)
    torch.testing.assert_close(binary_tv(policy, old), torch.tensor([0.3, 0.2, 0.0]).double())
    torch.testing.assert_close(binary_kl(policy, old), expected_kl, atol=1e-6, rtol=0)


def test_the_binary_divergences_are_at_most_those_of_the_whole_vocabulary():
    generator = torch.Generator().manual_seed(0)
    policy, old = torch.randn(2, 50, 12, dtype=torch.float64, generator=generator).log_softmax(-1)

    full_kl = (old.exp() * (old - policy)).sum(-1, keepdim=True)
    full_tv = (old.exp() - policy.exp()).abs().sum(-1, keepdim=True) / 2

    assert (binary_kl(policy, old) <= full_kl + 1e-12).all()
    assert (binary_tv(policy, old) <= full_tv + 1e-12).all()
    assert (binary_kl(policy, old) >= 0).all()


def test_pinsker_relates_the_two():
    """2 tv^2 <= kl, so a wrong direction or a missing half would show."""
    generator = torch.Generator().manual_seed(1)
    policy, old = torch.rand(2, 1000, dtype=torch.float64, generator=generator).log()

    assert (2 * binary_tv(policy, old).square() <= binary_kl(policy, old) + 1e-12).all()


@pytest.mark.parametrize(
    ("policy", "old", "advantage", "kept"),
    [
        (0.60, 0.50, 1.0, True),  # moved by 0.10
        (0.70, 0.50, 1.0, False),  # by 0.20, and up again
        (0.70, 0.50, -1.0, True),  # back down is allowed
        (0.30, 0.50, -1.0, False),
        (0.30, 0.50, 1.0, True),
        (0.040, 0.001, 1.0, True),  # 40 times as likely, and yet hardly moved: PPO would stop it
    ],
)
def test_a_token_is_dropped_where_it_would_leave_the_trust_region(
    one_token, policy, old, advantage, kept
):
    inputs = one_token(policy, old, old, advantage)

    result = DppoLoss(DppoConfig(max_ratio=None))(inputs)
    result.loss.sum().backward()

    ratio = policy / old
    expected = -ratio * advantage if kept else 0.0
    assert inputs.policy_logprobs.grad.item() == pytest.approx(expected)
    assert result.loss.item() == pytest.approx(expected * math.log(policy))


def test_the_default_threshold_depends_on_the_divergence():
    assert DppoLoss(DppoConfig()).threshold == 0.15
    assert DppoLoss(DppoConfig(divergence="kl")).threshold == 0.05
    assert DppoLoss(DppoConfig(divergence="kl", threshold=0.3)).threshold == 0.3


@pytest.mark.parametrize(("threshold", "kept"), [(0.2232, True), (0.2230, False)])
def test_kl_drops_by_the_divergence_from_the_old_policy(one_token, threshold, kept):
    inputs = one_token(0.2, 0.5, 0.5, -1.0)  # 0.223144 nats, see above

    DppoLoss(DppoConfig(divergence="kl", threshold=threshold))(inputs).loss.sum().backward()

    assert (inputs.policy_logprobs.grad.item() != 0.0) == kept


def test_the_weight_is_bounded(one_token):
    inputs = one_token(0.040, 0.001, 0.001, 1.0)

    DppoLoss(DppoConfig())(inputs).loss.sum().backward()

    assert inputs.policy_logprobs.grad.item() == pytest.approx(-20.0)  # and not -40


@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_it_equals_a_loop_over_tokens(step, divergence):
    inputs = step(3)
    policy, old, mask = inputs.policy_logprobs, inputs.old_logprobs, inputs.action_mask
    expected, dropped = torch.zeros_like(policy), 0
    for row, token in torch.nonzero(mask).tolist():
        p, q = math.exp(policy[row, token]), math.exp(old[row, token])
        kl = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        outside = (abs(p - q) if divergence == "tv" else kl) > 0.03
        advantage = inputs.advantages[row, token].item()
        if outside and advantage * (p - q) > 0:
            dropped += 1
            continue
        expected[row, token] = -min(p / q, 1.3) * advantage * math.log(p)

    result = dppo_loss(
        policy,
        old,
        inputs.advantages,
        mask,
        divergence=divergence,
        threshold=0.03,
        max_ratio=1.3,
    )

    assert 0 < dropped < int(mask.sum())
    assert int((result.dropped_low | result.dropped_high).sum()) == dropped
    torch.testing.assert_close(result.loss, expected)


def test_a_threshold_that_is_never_reached_leaves_the_ratio_times_the_advantage(step):
    inputs = step(4)
    ours = inputs.policy_logprobs.clone().requires_grad_()
    old, advantages, mask = inputs.old_logprobs, inputs.advantages, inputs.action_mask

    dppo_loss(
        ours, old, advantages, mask, divergence="tv", threshold=1.0, max_ratio=None
    ).loss.sum().backward()

    ratio = (inputs.policy_logprobs - old).exp()
    torch.testing.assert_close(ours.grad, torch.where(mask, -ratio * advantages, 0.0))


def test_each_side_is_counted(one_token):
    metrics = [
        metric_values(DppoLoss(DppoConfig())(one_token(policy, 0.5, 0.5, advantage)).metrics)
        for policy, advantage in [(0.7, 1.0), (0.3, -1.0)]
    ]

    up, down = metrics
    assert (up["clip/fraction_low"], up["clip/fraction_high"]) == (0.0, 1.0)
    assert (down["clip/fraction_low"], down["clip/fraction_high"]) == (1.0, 0.0)
    assert up["dppo/divergence"] == pytest.approx(0.2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_certain_and_impossible_tokens_give_finite_losses(dtype, divergence):
    policy = torch.tensor([[0.0, -1e4, -1e-9, -200.0]], dtype=dtype, requires_grad=True)
    old = torch.tensor([[-1e4, 0.0, -30.0, -1e-9]], dtype=dtype)

    for sign in (1.0, -1.0):
        result = dppo_loss(
            policy,
            old,
            torch.full_like(old, sign),
            torch.ones(1, 4, dtype=torch.bool),
            divergence=divergence,
            threshold=0.05,
            max_ratio=None,
        )
        (grad,) = torch.autograd.grad(result.loss.sum(), policy)
        assert torch.isfinite(result.loss).all()
        assert torch.isfinite(result.divergence).all()
        assert torch.isfinite(grad).all()


def test_an_unknown_divergence_is_refused(step):
    inputs = step()

    with pytest.raises(ValueError, match="'js': expected 'tv' or 'kl'"):
        dppo_loss(
            inputs.policy_logprobs,
            inputs.old_logprobs,
            inputs.advantages,
            inputs.action_mask,
            divergence="js",
            threshold=0.1,
            max_ratio=None,
        )

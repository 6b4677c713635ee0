"""The losses of Clip-Cov and KL-Cov for a given selection."""

import math
from dataclasses import replace

import pytest
import torch

from rlhf_core.contracts import LossInputs, metric_values
from rlhf_plugin_covariance.components import ClipCovLoss, KlCovLoss
from rlhf_plugin_covariance.config import ClipCovConfig, KlCovConfig
from rlhf_plugin_covariance.losses import clip_cov_loss, kl_cov_loss

CLIP = {"clip_low": 0.2, "clip_high": 0.3}


def test_clip_cov_by_hand():
    ratio = torch.tensor([[1.1, 3.0, 3.0, 0.5, 1.1]], dtype=torch.float64)
    advantages = torch.tensor([[2.0, 1.0, -1.0, -1.0, 1.0]], dtype=torch.float64)
    policy = ratio.log().requires_grad_()
    detached = torch.tensor([[False, False, False, False, True]])

    result = clip_cov_loss(
        policy, torch.zeros_like(ratio), advantages, torch.ones_like(detached), detached, **CLIP
    )
    result.loss.sum().backward()

    # -1.1 * 2; clipped at 1.3; 3 in full; clipped at 0.8; detached
    expected = torch.tensor([[-2.2, -1.3, 3.0, 0.8, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(result.loss.detach(), expected)
    gradient = torch.tensor([[-2.2, 0.0, 3.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(policy.grad, gradient)
    assert result.clipped_low.tolist() == [[False, False, False, True, False]]
    assert result.clipped_high.tolist() == [[False, True, False, False, False]]


def test_kl_cov_by_hand():
    ratio = torch.tensor([[2.0, 2.0, 0.5, 0.5]], dtype=torch.float64)
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0]], dtype=torch.float64)
    policy = ratio.log().requires_grad_()
    penalized = torch.tensor([[False, True, False, True]])

    result = kl_cov_loss(
        policy,
        torch.zeros_like(ratio),
        advantages,
        torch.ones_like(penalized),
        penalized,
        kl_coef=3.0,
    )
    result.loss.sum().backward()

    # -ratio * A, plus 3 * ln 2 where penalized; the ratio is not clipped.
    pull = 3 * math.log(2)
    expected = torch.tensor([[-2.0, -2.0 + pull, 0.5, 0.5 + pull]], dtype=torch.float64)
    torch.testing.assert_close(result.loss.detach(), expected)
    # The penalty pulls back with 3: down where the ratio is above 1, up where it is below.
    gradient = torch.tensor([[-2.0, -2.0 + 3.0, 0.5, 0.5 - 3.0]], dtype=torch.float64)
    torch.testing.assert_close(policy.grad, gradient)


def test_without_selected_tokens_they_are_the_clipped_and_the_plain_loss(random_step):
    step = random_step()
    mask, none = step.action_mask, torch.zeros_like(step.action_mask)
    columns = (step.policy_logprobs, step.old_logprobs, step.advantages, mask, none)
    ratio = (step.policy_logprobs - step.old_logprobs).exp()
    clipped = torch.minimum(ratio * step.advantages, ratio.clamp(0.8, 1.3) * step.advantages)

    torch.testing.assert_close(
        clip_cov_loss(*columns, **CLIP).loss, torch.where(mask, -clipped, 0.0)
    )
    torch.testing.assert_close(
        kl_cov_loss(*columns, kl_coef=1.0).loss,
        torch.where(mask, -ratio * step.advantages, 0.0),
    )


def test_gradients_are_right(random_step):
    step = random_step(seed=1)
    selected = torch.rand(5, 6, generator=torch.Generator().manual_seed(0)) < 0.4
    policy = step.policy_logprobs.clone().requires_grad_()
    rest = (step.old_logprobs, step.advantages, step.action_mask, selected)

    assert torch.autograd.gradcheck(lambda x: clip_cov_loss(x, *rest, **CLIP).loss, policy)
    assert torch.autograd.gradcheck(lambda x: kl_cov_loss(x, *rest, kl_coef=0.7).loss, policy)


def test_the_penalty_still_pulls_where_the_ratio_is_clamped():
    policy = torch.tensor([[60.0]], requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.bool)

    kl_cov_loss(
        policy, torch.zeros(1, 1), torch.ones(1, 1), one, one, kl_coef=2.0
    ).loss.sum().backward()

    torch.testing.assert_close(policy.grad, torch.tensor([[2.0]]))


def test_clip_cov_reports_what_it_clipped_and_detached():
    inputs = LossInputs(
        policy_logprobs=torch.tensor([[0.5, 1.5, 1.0, 1.5, 9.0]]).log(),
        old_logprobs=torch.zeros(1, 5),
        advantages=torch.tensor([[-1.0, 1.0, 1.0, 1.0, 1.0]]),
        action_mask=torch.tensor([[True, True, True, True, False]]),
        prepared={"detached": torch.tensor([[0.0, 0.0, 1.0, 1.0, 1.0]])},
    )

    metrics = ClipCovLoss(ClipCovConfig(**CLIP))(inputs).metrics

    # A detached token is not counted as clipped too, and padding not at all.
    assert metric_values(metrics) == pytest.approx(
        {
            "policy/ratio": 4.5 / 4,
            "clip/fraction_low": 0.25,
            "clip/fraction_high": 0.25,
            "clip/fraction_cov": 0.5,
        }
    )


def test_kl_cov_reports_how_far_the_penalized_tokens_have_moved():
    inputs = LossInputs(
        policy_logprobs=torch.tensor([[0.5, -0.3, 0.1, 9.0]]),
        old_logprobs=torch.zeros(1, 4),
        advantages=torch.ones(1, 4),
        action_mask=torch.tensor([[True, True, True, False]]),
        prepared={"penalized": torch.tensor([[1.0, 1.0, 0.0, 1.0]])},
    )
    ratios = sum(math.exp(x) for x in (0.5, -0.3, 0.1))

    metrics = KlCovLoss(KlCovConfig())(inputs).metrics

    assert metric_values(metrics) == pytest.approx(
        {
            "policy/ratio": ratios / 3,
            "kl_cov/fraction": 2 / 3,
            "kl_cov/abs_log_ratio": 0.4,
        }
    )
    none = replace(inputs, prepared={"penalized": torch.zeros(1, 4)})
    assert "kl_cov/abs_log_ratio" not in metric_values(KlCovLoss(KlCovConfig())(none).metrics)

"""Group policy gradient."""

from dataclasses import replace

import torch

from rlhf_core import Config
from rlhf_plugin_soft_losses.gpg import GpgLoss, gpg_loss


def test_the_loss_by_hand():
    policy = torch.tensor([[-0.5, -2.0, -1.0]])
    advantages = torch.tensor([[2.0, -1.0, 3.0]])
    mask = torch.tensor([[True, True, False]])

    torch.testing.assert_close(gpg_loss(policy, advantages, mask), torch.tensor([[1.0, -2.0, 0.0]]))


def test_the_gradient_is_minus_the_advantage_however_far_the_policy_moved(random_step):
    step = random_step(drift=3.0)
    policy = step.policy_logprobs.clone().requires_grad_()

    GpgLoss(Config())(replace(step, policy_logprobs=policy)).loss.sum().backward()

    torch.testing.assert_close(policy.grad, torch.where(step.action_mask, -step.advantages, 0.0))


def test_it_does_not_look_at_the_old_policy(random_step):
    step = random_step()
    other = replace(step, old_logprobs=torch.full_like(step.old_logprobs, float("nan")))

    assert torch.equal(GpgLoss(Config())(other).loss, GpgLoss(Config())(step).loss)


def test_gradients_are_right(random_step):
    step = random_step()

    assert torch.autograd.gradcheck(
        lambda x: gpg_loss(x, step.advantages, step.action_mask),
        step.policy_logprobs.clone().requires_grad_(),
    )

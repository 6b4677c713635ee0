"""The loss of each action that an update tells, and the bound that stopped it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlhf_core.contracts import PolicyObjective, TokenLoss
from rlhf_core.contracts.backend import JUDGED
from rlhf_core.objective import BuiltPolicyObjective, PolicyComponents

ALL = range(3)


def clipped_loss(inputs):
    """PPO's, with a range of 0.2 on both sides."""
    ratio = (inputs.policy_logprobs - inputs.old_logprobs).exp()
    bounded = ratio.clamp(0.8, 1.2)
    return TokenLoss(loss=-torch.minimum(ratio * inputs.advantages, bounded * inputs.advantages))


def detached_loss(inputs):
    """Of the top tokens alone, say: no gradient to the actions' log-probs."""
    return TokenLoss(loss=inputs.advantages * torch.ones((), requires_grad=True))


@pytest.fixture
def told(refs, leaves, part, plan):
    """``told(batch, loss=, rows=, plan=, correction=)``: losses, clipped and the gradient of an update."""

    def run(batch, *, loss=clipped_loss, rows=ALL, correction=None, plan=plan):
        components = PolicyComponents(
            objective=PolicyObjective(loss=refs.loss, aggregation="token-mean"),
            loss=loss,
            correction=correction,
            applies_is_weights=False,
            wants_entropy=False,
        )
        heard = []
        logprobs, entropies = leaves()
        total, _ = BuiltPolicyObjective(components).rollouts(
            *part(batch, rows, logprobs, entropies), plan, lambda *each: heard.append(each)
        )
        if total.requires_grad:
            total.backward()
        ((losses, clipped),) = heard
        return losses, clipped, total.detach(), logprobs.grad

    return run


@pytest.fixture
def moved(batch, leaves):
    """A batch whose ratios are 1.5, 1.5, 0.5, 0.5, 1.1 and 1, and the advantages 2, -2, 2, -2, 2 and 0."""
    ratios = np.array([1.5, 1.5, 0.5, 0.5, 1.1, 1.0])
    old = leaves()[0].detach().numpy() - np.log(ratios)
    advantages = np.array([2, -2, 2, -2, 2, 0], dtype=np.float32)
    return replace(batch, columns={"advantages": advantages, "old_logprobs": old})


def test_a_token_is_clipped_where_a_bound_stops_its_gradient(told, moved):
    losses, clipped, total, gradient = told(moved)

    # -min(1.5 * 2, 1.2 * 2), -min(1.5 * -2, 1.2 * -2), -min(0.5 * 2, 0.8 * 2), -min(0.5 * -2, 0.8 * -2), -1.1 * 2
    assert losses.tolist() == pytest.approx([-2.4, 3.0, -1.0, 1.6, -2.2, 0.0], abs=1e-6)
    assert clipped.tolist() == [1.0, 0.0, 0.0, -1.0, 0.0, 0.0]
    assert (gradient == 0).tolist() == [True, False, False, True, False, True]
    assert losses.mean().item() == pytest.approx(total.item(), abs=1e-6)


def test_listening_changes_no_gradient(told, moved, refs, built, leaves, part, plan):
    *_, total, gradient = told(moved)

    assert torch.isfinite(total)
    components = PolicyComponents(
        objective=PolicyObjective(loss=refs.loss, aggregation="token-mean"),
        loss=clipped_loss,
        correction=None,
        applies_is_weights=False,
        wants_entropy=False,
    )
    logprobs, entropies = leaves()
    loss, _ = BuiltPolicyObjective(components).rollouts(
        *part(moved, ALL, logprobs, entropies), plan
    )
    loss.backward()
    assert torch.equal(loss.detach(), total)
    assert torch.equal(logprobs.grad, gradient)


def test_it_does_not_depend_on_the_micro_batches(told, moved):
    whole, rows = told(moved), [told(moved, rows=[row]) for row in ALL]

    for at in (0, 1):
        assert torch.equal(torch.cat([each[at] for each in rows]), whole[at])


def test_rows_whose_rewards_do_not_count_have_none(told, moved):
    column = np.array([1, 1, 0, 1, 1, 1], dtype=np.float32)  # row 1 is the third action
    losses, clipped, *_ = told(replace(moved, columns={**moved.columns, JUDGED: column}))

    assert losses.isnan().tolist() == clipped.isnan().tolist() == [False, False, True, *[False] * 3]


def test_without_a_row_that_counts_there_is_none(told, moved):
    nothing = np.zeros(6, dtype=np.float32)
    losses, clipped, *_ = told(replace(moved, columns={**moved.columns, JUDGED: nothing}))

    assert losses.isnan().all()
    assert clipped.isnan().all()
    assert losses.shape == clipped.shape == (6,)


def test_what_a_loss_without_a_gradient_to_the_actions_clips_is_not_known(told, moved):
    losses, clipped, *_ = told(moved, loss=detached_loss)

    assert losses.tolist() == [2, -2, 2, -2, 2, 0]
    assert clipped.isnan().all()

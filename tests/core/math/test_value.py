"""The critic's loss."""

import pytest
import torch

from rlhf_core.math import value_loss


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        # V = 1: clipped to 0.5, so max(0, 0.25) / 2 = 0.125. V = 0.2: not clipped, 0.64 / 2 = 0.32. Mean 0.2225.
        (0.5, [0.125, 0.32]),
        # No clip: 0 and 0.64 / 2. Mean 0.16.
        (None, [0.0, 0.32]),
    ],
)
def test_value_loss_by_hand(clip, expected):
    """The means are also those of OpenRLHF 0.11.2."""
    actual = value_loss(torch.tensor([1.0, 0.2]), torch.zeros(2), torch.ones(2), clip)

    torch.testing.assert_close(actual, torch.tensor(expected))


def test_a_clip_that_is_not_reached_changes_nothing():
    generator = torch.Generator().manual_seed(0)
    values, old, returns = torch.randn(3, 4, 5, generator=generator)

    torch.testing.assert_close(
        value_loss(values, old, returns, 100.0), value_loss(values, old, returns, None)
    )


def test_clipping_never_lowers_the_loss():
    generator = torch.Generator().manual_seed(1)
    values, old, returns = torch.randn(3, 200, generator=generator)

    assert (value_loss(values, old, returns, 0.1) >= value_loss(values, old, returns, None)).all()


def test_a_value_that_moved_far_enough_gets_no_gradient():
    # From 0 towards a return of 10, with a clip of 1: at 2 the clipped error (9^2) is the larger one, and constant.
    values = torch.tensor([0.5, 2.0], requires_grad=True)

    value_loss(values, torch.zeros(2), torch.full((2,), 10.0), 1.0).sum().backward()

    assert values.grad is not None
    assert values.grad.tolist() == [-9.5, 0.0]


def test_it_equals_a_loop_over_tokens():
    generator = torch.Generator().manual_seed(2)
    values, old, returns = torch.randn(3, 50, dtype=torch.float64, generator=generator).tolist()

    expected = []
    for v, o, g in zip(values, old, returns, strict=True):
        clipped = min(max(v, o - 0.3), o + 0.3)
        expected.append(0.5 * max((v - g) ** 2, (clipped - g) ** 2))

    actual = value_loss(
        *(torch.tensor(x, dtype=torch.float64) for x in (values, old, returns)), 0.3
    )
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("clip", [None, 0.2])
def test_masked_tokens_get_no_loss_and_no_gradient(clip):
    nan = float("nan")
    values = torch.tensor([[1.0, nan], [2.0, 3.0]], requires_grad=True)
    old = torch.tensor([[0.5, 0.0], [nan, 2.9]])
    returns = torch.tensor([[2.0, nan], [1.0, 4.0]])
    mask = torch.tensor([[True, False], [False, True]])

    actual = value_loss(values, old, returns, clip, action_mask=mask)
    actual.sum().backward()

    assert (actual[~mask] == 0).all()
    assert torch.isfinite(actual).all()
    assert values.grad is not None
    assert torch.isfinite(values.grad).all()
    assert (values.grad[~mask] == 0).all()


@pytest.mark.parametrize("clip", [None, 0.2])
def test_gradients_are_right(clip):
    generator = torch.Generator().manual_seed(3)
    values, old, returns = torch.randn(3, 6, dtype=torch.float64, generator=generator)

    assert torch.autograd.gradcheck(
        lambda x: value_loss(x, old, returns, clip), values.requires_grad_()
    )

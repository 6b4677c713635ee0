"""Flat values as right-padded rows."""

import numpy as np
import torch

from rlhf_core.math import pad_columns
from rlhf_core.objective import ActionGrid

CPU = torch.device("cpu")


def test_values_lie_row_by_row_with_0_at_padding():
    grid = ActionGrid.of(np.array([2, 0, 3]), CPU)

    assert grid.pad(torch.arange(1.0, 6.0)).tolist() == [[1, 2, 0], [0, 0, 0], [3, 4, 5]]
    assert grid.mask.sum(1).tolist() == [2, 0, 3]


def test_it_is_the_padding_of_math_for_every_width():
    lengths = torch.tensor([3, 1, 0, 4])
    grid = ActionGrid.of(lengths.numpy(), CPU)

    for shape in ((8,), (8, 2)):
        flat = torch.randn(shape)
        padded = grid.pad(flat)
        assert torch.equal(padded[grid.mask], flat)
        assert not padded[~grid.mask].any()
    assert torch.equal(grid.mask, pad_columns(torch.ones(8), lengths)[1])


def test_the_gradient_goes_back_to_each_value():
    flat = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)

    (
        ActionGrid.of(np.array([1, 2]), CPU).pad(flat) * torch.tensor([[5.0, 9.0], [6.0, 7.0]])
    ).sum().backward()

    assert flat.grad.tolist() == [5.0, 6.0, 7.0]


def test_there_may_be_no_rows_and_no_actions():
    assert ActionGrid.of(np.zeros(0, dtype=np.int64), CPU).pad(torch.zeros(0)).shape == (0, 0)
    assert ActionGrid.of(np.array([0, 0]), CPU).pad(torch.zeros(0)).shape == (2, 0)


def test_the_last_value_of_each_row_gets_the_gradient():
    flat = torch.arange(1.0, 7.0).requires_grad_()

    last = ActionGrid.of(np.array([2, 1, 3]), CPU).last(flat)
    last.sum().backward()

    assert last.tolist() == [2.0, 3.0, 6.0]
    assert flat.grad.tolist() == [0, 1, 1, 0, 0, 1]

"""Between flat columns and padded rows."""

import pytest
import torch

from rlhf_core.math import pad_columns, unpad


def test_rows_follow_each_other():
    values, mask = pad_columns(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1, 0, 3]))

    assert values.tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [2.0, 3.0, 4.0]]
    assert mask.tolist() == [[True, False, False], [False] * 3, [True] * 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_unpad_inverts_pad_columns(dtype):
    flat = torch.tensor([1, 0, 1, 1, 0, 1]).to(dtype)

    values, mask = pad_columns(flat, torch.tensor([2, 3, 1]))

    assert values.dtype == dtype
    assert torch.equal(unpad(values, mask), flat)


def test_it_equals_a_loop_over_rows():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, 6, (9,), generator=generator)
    flat = torch.randn(int(lengths.sum()), generator=generator)

    values, mask = pad_columns(flat, lengths)

    start = 0
    for row, length in enumerate(lengths.tolist()):
        assert torch.equal(values[row, :length], flat[start : start + length])
        assert not mask[row, length:].any()
        assert (values[row, length:] == 0).all()
        start += length


def test_gradients_flow_both_ways():
    flat = torch.randn(6, dtype=torch.float64).requires_grad_()
    lengths = torch.tensor([2, 3, 1])

    def there_and_back(column: torch.Tensor) -> torch.Tensor:
        values, mask = pad_columns(column, lengths)
        return unpad(values.square(), mask)

    assert torch.autograd.gradcheck(there_and_back, flat)


def test_lengths_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match="add up to 3, but the column has 4"):
        pad_columns(torch.zeros(4), torch.tensor([1, 2]))


def test_nothing_gives_nothing():
    values, mask = pad_columns(torch.zeros(0), torch.zeros(0, dtype=torch.int64))

    assert values.shape == mask.shape == (0, 0)

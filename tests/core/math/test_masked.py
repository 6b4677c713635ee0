"""Padded rows of flat columns, and statistics where a mask is True."""

import math

import pytest
import torch

from rlhf_core.math import masked_mean, masked_sum, masked_var, pad_columns, unpad, whiten

NAN = float("nan")


def test_mean_and_variance_by_hand():
    values = torch.tensor([[1.0, 3.0], [8.0, 99.0]])
    mask = torch.tensor([[True, True], [True, False]])

    # sum 1 + 3 + 8 = 12, mean 12 / 3 = 4, variance (9 + 1 + 16) / 3 = 26 / 3
    assert masked_sum(values, mask).item() == 12.0
    assert masked_mean(values, mask).item() == 4.0
    assert masked_var(values, mask).item() == pytest.approx(26 / 3, rel=1e-12)


def test_whitening_by_hand():
    values = torch.tensor([[1.0, 3.0], [8.0, 99.0]])
    mask = torch.tensor([[True, True], [True, False]])

    std = math.sqrt(26 / 3)
    expected = torch.tensor([[-3 / std, -1 / std], [4 / std, 0.0]])
    torch.testing.assert_close(whiten(values, mask), expected)
    centered = torch.tensor([[-3.0, -1.0], [4.0, 0.0]])
    torch.testing.assert_close(whiten(values, mask, divide_by_std=False), centered)


def test_whitened_values_have_mean_0_and_variance_1():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(7, 5, generator=generator) * 3 + 100
    mask = torch.rand(7, 5, generator=generator) < 0.6

    actual = whiten(values, mask)

    assert masked_mean(actual, mask).item() == pytest.approx(0.0, abs=1e-6)
    assert masked_var(actual, mask).item() == pytest.approx(1.0, abs=1e-5)


def test_nan_at_padding_has_no_effect_on_values_or_gradients():
    mask = torch.tensor([[True, True, False], [True, False, False]])
    clean = torch.tensor([[1.0, 2.0, 0.0], [4.0, 0.0, 0.0]])
    dirty = torch.where(mask, clean, NAN).requires_grad_()

    for statistic in (masked_sum, masked_mean, masked_var):
        torch.testing.assert_close(statistic(dirty, mask), statistic(clean, mask))
    torch.testing.assert_close(whiten(dirty, mask), whiten(clean, mask))
    (masked_var(dirty, mask) + whiten(dirty, mask)[0, 0]).backward()
    assert dirty.grad is not None
    assert torch.isfinite(dirty.grad).all()
    assert (dirty.grad[~mask] == 0).all()


@pytest.mark.parametrize(("value", "size"), [(0.1, 8), (0.3, 7), (1e6 + 0.1, 33)])
def test_equal_values_that_are_not_exact_in_binary_whiten_to_zero(value, size):
    mask = torch.ones(1, size, dtype=torch.bool)

    torch.testing.assert_close(
        whiten(torch.full((1, size), value), mask), torch.zeros(1, size), atol=0.0, rtol=0.0
    )


def test_a_mean_over_nothing_is_zero():
    empty = torch.zeros(2, 2, dtype=torch.bool)

    assert masked_mean(torch.full((2, 2), NAN), empty).item() == 0.0
    assert whiten(torch.full((2, 2), NAN), empty).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_half_precision_is_not_summed_in_half_precision():
    # bfloat16 cannot count past 256 in steps of 1.
    values = torch.ones(1000, dtype=torch.bfloat16)

    assert masked_sum(values, torch.ones(1000, dtype=torch.bool)).item() == 1000.0


def test_more_padding_changes_nothing():
    values = torch.tensor([[1.0, 2.0], [5.0, 0.0]])
    mask = torch.tensor([[True, True], [True, False]])
    wide, wide_mask = (torch.nn.functional.pad(tensor, (0, 3)) for tensor in (values, mask))

    torch.testing.assert_close(whiten(wide, wide_mask)[:, :2], whiten(values, mask))


def test_the_gradient_of_whitening_is_right():
    values = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[True] * 4, [True, True, False, False], [True, False, False, False]])

    assert torch.autograd.gradcheck(
        lambda tensor: whiten(tensor, mask), values.requires_grad_(), atol=1e-6
    )


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

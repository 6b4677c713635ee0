"""The ratio of a sequence."""

import torch

from rlhf_core.math import credited_to_own_token, row_mean, token_log_ratios


def test_log_ratios_are_clamped_and_zero_at_padding():
    policy = torch.tensor([[1.0, 90.0, -90.0, float("nan")]])
    mask = torch.tensor([[True, True, True, False]])

    actual = token_log_ratios(policy, torch.zeros(1, 4), mask)

    torch.testing.assert_close(actual, torch.tensor([[1.0, 20.0, -20.0, 0.0]]))


def test_the_mean_is_over_action_tokens_and_zero_without_any():
    values = torch.tensor([[1.0, 3.0, float("nan")], [float("nan")] * 3])
    mask = torch.tensor([[True, True, False], [False] * 3])

    torch.testing.assert_close(row_mean(values, mask), torch.tensor([[2.0], [0.0]]))


def test_the_value_is_the_sequence_s_and_the_gradient_the_token_s():
    log_ratio = torch.tensor([[0.1, 0.5]], requires_grad=True)

    credited = credited_to_own_token(torch.tensor([[3.0]]), log_ratio)
    (first,) = torch.autograd.grad(credited[0, 0], log_ratio)

    torch.testing.assert_close(credited.detach(), torch.full((1, 2), 3.0))
    torch.testing.assert_close(first, torch.tensor([[3.0, 0.0]]))

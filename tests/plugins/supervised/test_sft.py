"""Supervised fine-tuning as a term."""

import math

import pytest
import torch

from rlhf_core.contracts import LossInputs, metric_values
from rlhf_core.math import aggregate
from rlhf_plugin_supervised.sft import SftConfig, SftLoss


def inputs_of(policy: torch.Tensor, mask: torch.Tensor) -> LossInputs:
    return LossInputs(
        policy_logprobs=policy,
        old_logprobs=policy.detach(),
        advantages=torch.ones_like(policy),
        action_mask=mask,
    )


def test_it_is_the_negative_log_likelihood_of_the_tokens():
    policy = torch.tensor([[0.5, 0.25, 1.0], [0.125, 1.0, 1.0]]).log().requires_grad_()
    mask = torch.tensor([[True, True, False], [True, False, False]])

    result = SftLoss(SftConfig())(inputs_of(policy, mask))
    result.loss.sum().backward()

    two = math.log(2)
    torch.testing.assert_close(
        result.loss, torch.tensor([[two, 2 * two, 0.0], [3 * two, 0.0, 0.0]])
    )
    torch.testing.assert_close(policy.grad, -mask.float())
    assert metric_values(result.metrics) == pytest.approx({"sft/nll": 2 * two})


def test_averaged_over_tokens_it_is_the_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 5, dtype=torch.float64, generator=generator)
    tokens = torch.tensor([[0, 4, 2, 1], [3, 3, 0, 0]])
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    policy = logits.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)

    loss = SftLoss(SftConfig())(inputs_of(policy, mask)).loss
    mean = aggregate(loss, mask, "token-mean", num_actions=6, num_sequences=2, max_actions=4)

    expected = torch.nn.functional.cross_entropy(
        logits.reshape(-1, 5), torch.where(mask, tokens, -100).reshape(-1)
    )
    torch.testing.assert_close(mean, expected)


def test_nan_at_padding_has_no_effect():
    policy = torch.tensor([[-1.0, float("nan")]], requires_grad=True)

    result = SftLoss(SftConfig())(inputs_of(policy, torch.tensor([[True, False]])))
    result.loss.sum().backward()

    assert result.loss.tolist() == [[1.0, 0.0]]
    assert policy.grad.tolist() == [[-1.0, 0.0]]
    assert metric_values(result.metrics) == {"sft/nll": 1.0}

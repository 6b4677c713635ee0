"""Supervised fine-tuning as a term."""

import math
from dataclasses import replace

import pytest
import torch

from rlhf_core.contracts import LossInputs, metric_values
from rlhf_core.math import aggregate
from rlhf_plugin_supervised.sft import SftConfig, SftLoss, dft_loss, smoothed_loss


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


def test_dft_by_hand():
    policy = torch.tensor([[0.5, 0.25, 1.0]]).log().requires_grad_()

    result = SftLoss(SftConfig(loss="dft"))(inputs_of(policy, torch.tensor([[True, True, False]])))
    result.loss.sum().backward()

    # 0.5 log 2 and 0.25 log 4, with the gradients -0.5 and -0.25.
    two = math.log(2)
    torch.testing.assert_close(result.loss, torch.tensor([[two / 2, two / 2, 0.0]]))
    torch.testing.assert_close(policy.grad, torch.tensor([[-0.5, -0.25, 0.0]]))
    assert metric_values(result.metrics) == pytest.approx({"sft/nll": 1.5 * two})


def test_certain_and_impossible_tokens_have_no_dft_loss():
    assert dft_loss(torch.tensor([[0.0, 200.0]])).tolist() == [[0.0, 0.0]]


def test_dft_is_the_likelihood_times_a_constant_where_probabilities_are_equal():
    nll = torch.full((2, 3), 1.7, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(dft_loss(nll).sum(), nll)

    torch.testing.assert_close(dft_loss(nll), math.exp(-1.7) * nll)
    torch.testing.assert_close(grad, torch.full_like(nll, math.exp(-1.7)))


def test_the_reward_of_dft_is_the_same_for_each_token():
    """By logits of a whole vocabulary: the gradient is that of the token's probability, not of its logarithm."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 7, dtype=torch.float64, generator=generator, requires_grad=True)

    (found,) = torch.autograd.grad(dft_loss(-logits.log_softmax(-1)[:, 2:3]).sum(), logits)
    (probability,) = torch.autograd.grad(-logits.softmax(-1)[:, 2].sum(), logits)

    torch.testing.assert_close(found, probability)


def test_dft_against_a_slow_loop():
    generator = torch.Generator().manual_seed(1)
    nll = torch.rand(3, 4, dtype=torch.float64, generator=generator) * 8

    actual = dft_loss(nll)

    for row, token in torch.nonzero(nll).tolist():
        nats = nll[row, token].item()
        assert actual[row, token].item() == pytest.approx(nats * math.exp(-nats), rel=1e-12)


def test_smoothed_labels_by_hand():
    probs = torch.tensor([[[0.5, 0.25, 0.125, 0.125]]])
    policy = probs[..., 1].log().requires_grad_()
    means = probs.log().mean(-1).requires_grad_()
    inputs = replace(inputs_of(policy, torch.tensor([[True]])), mean_logprobs=means)

    result = SftLoss(SftConfig(label_smoothing=0.2))(inputs)
    result.loss.sum().backward()

    # 0.8 * 2 log 2, and 0.2 times the mean of 1, 2, 3 and 3 log 2, which is 9/4 log 2
    two = math.log(2)
    torch.testing.assert_close(result.loss, torch.tensor([[(1.6 + 0.45) * two]]))
    assert policy.grad.item() == pytest.approx(-0.8)
    assert means.grad.item() == pytest.approx(-0.2)
    assert metric_values(result.metrics) == pytest.approx({"sft/nll": 2 * two})


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.9])
def test_smoothed_labels_are_those_of_torch(label_smoothing):
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(6, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    tokens = torch.tensor([0, 4, 2, 1, 3, 3])
    logprobs = logits.log_softmax(-1)
    nll = -logprobs.gather(-1, tokens[:, None])[:, 0]

    loss = smoothed_loss(
        nll[None], -logprobs.mean(-1)[None], label_smoothing=label_smoothing
    ).mean()
    (actual,) = torch.autograd.grad(loss, logits)
    theirs = torch.nn.functional.cross_entropy(logits, tokens, label_smoothing=label_smoothing)
    (expected,) = torch.autograd.grad(theirs, logits)

    torch.testing.assert_close(loss, theirs)
    torch.testing.assert_close(actual, expected)


def test_nan_at_padding_has_no_effect_on_smoothed_labels():
    policy = torch.tensor([[-1.0, float("nan")]], requires_grad=True)
    means = torch.tensor([[-2.0, float("nan")]], requires_grad=True)
    inputs = replace(inputs_of(policy, torch.tensor([[True, False]])), mean_logprobs=means)

    result = SftLoss(SftConfig(label_smoothing=0.5))(inputs)
    result.loss.sum().backward()

    assert result.loss.tolist() == [[1.5, 0.0]]
    assert policy.grad.tolist() == [[-0.5, 0.0]]
    assert means.grad.tolist() == [[-0.5, 0.0]]


def test_smoothed_labels_belong_to_the_likelihood():
    assert SftConfig().needed_by_options() == frozenset()
    assert SftConfig(label_smoothing=0.1).needed_by_options() == {"mean_logprobs"}
    with pytest.raises(ValueError, match=r"label_smoothing 0.1 with loss dft: expected loss nll"):
        SftConfig(loss="dft", label_smoothing=0.1)

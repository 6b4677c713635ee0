"""The chunked head against plain logits."""

import pytest
import torch

from rlhf_plugin_local.backend.action_head import action_logprobs
from rlhf_plugin_local.modeling import load_causal_lm


@pytest.fixture(params=["qwen3", "gemma3"])
def lm(request, models):
    lm = load_causal_lm(str(models[request.param]), dtype="float32")
    lm._softcap = 2.0 if request.param == "gemma3" else None  # a softcap shows in every gradient
    return lm


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(13, 32, generator=generator) * 3
    return hidden.requires_grad_(), torch.randint(0, 100, (13,), generator=generator)


def plain(lm, hidden, targets, temperature):
    scaled = lm.logits(hidden) / temperature
    probs = scaled.softmax(-1)
    chosen = torch.stack([scaled[i, t] for i, t in enumerate(targets.tolist())])
    return chosen - scaled.exp().sum(-1).log(), -(probs * probs.log()).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
@pytest.mark.parametrize("chunk", [1, 4, 13, 100])
def test_values_do_not_depend_on_the_chunks(lm, inputs, temperature, chunk):
    expected = plain(lm, *inputs, temperature)

    actual = action_logprobs(lm, *inputs, temperature=temperature, chunk=chunk)

    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("use", ["logprobs", "entropy", "both"])
@pytest.mark.parametrize("chunk", [4, 100])
def test_gradients_are_those_of_plain_autograd(lm, inputs, use, chunk):
    hidden, targets = inputs
    parameters = [hidden, *lm.model.get_output_embeddings().parameters()]
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(2, 13, generator=generator)

    def loss(results):
        parts = [(weight * result).sum() for weight, result in zip(weights, results, strict=True)]
        return {"logprobs": parts[0], "entropy": parts[1], "both": sum(parts)}[use]

    actual = torch.autograd.grad(
        loss(action_logprobs(lm, hidden, targets, temperature=0.7, chunk=chunk)), parameters
    )
    expected = torch.autograd.grad(loss(plain(lm, hidden, targets, 0.7)), parameters)

    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)


def test_uniform_logits_have_the_entropy_of_the_vocabulary(lm):
    logprobs, entropy = action_logprobs(
        lm, torch.zeros(2, 32), torch.tensor([3, 50]), temperature=1.0, chunk=8
    )

    # log 100 = 4.60517
    torch.testing.assert_close(entropy.detach(), torch.full((2,), 4.6051702))
    torch.testing.assert_close(logprobs.detach(), torch.full((2,), -4.6051702))


def test_a_frozen_head_gets_no_gradient_but_lets_it_through(lm, inputs):
    hidden, targets = inputs
    lm.requires_grad_(False)

    action_logprobs(lm, hidden, targets, temperature=1.0, chunk=5)[0].sum().backward()

    assert all(p.grad is None for p in lm.parameters())
    assert float(hidden.grad.abs().max()) > 0

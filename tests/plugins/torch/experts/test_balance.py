"""The balancing loss of one micro-batch."""

import pytest
import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from rlhf_torch.experts.balance import balancing_part


def slow_loss(logits, weights, top_k):
    """Equations 4 to 6 of arXiv:2101.03961, token by token and layer by layer."""
    num_experts, tokens = logits[0].shape[1], 0.0
    fractions, probs = [0.0] * num_experts, [0.0] * num_experts
    for layer in logits:
        for scores, weight in zip(layer, weights.tolist(), strict=True):
            probability = (scores - scores.max()).exp()
            probability = probability / probability.sum()
            best = scores.detach().argsort(descending=True)[:top_k].tolist()
            for expert in range(num_experts):
                fractions[expert] += weight * (expert in best)
                probs[expert] = probs[expert] + weight * probability[expert]
            tokens += weight
    return num_experts * sum(f / tokens * p / tokens for f, p in zip(fractions, probs, strict=True))


def random_logits(num_layers=3, num_tokens=11, num_experts=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(num_tokens, num_experts, generator=generator, dtype=torch.float32)
        for _ in range(num_layers)
    ]


def test_a_case_by_hand():
    """Two tokens, two experts, k = 1, with p = (3/4, 1/4) and (1/4, 3/4) in the first layer and (3/4, 1/4) twice in the
    second: f = (3, 1) / 4, P = (2.5, 1.5) / 4, and 2 (3 * 2.5 + 1 * 1.5) / 16 = 1.125."""
    three = torch.tensor(3.0).log()
    first = torch.stack([torch.stack([three, 0 * three]), torch.stack([0 * three, three])])
    second = torch.stack([torch.stack([three, 0 * three])] * 2)

    loss = balancing_part([first, second], torch.ones(2), top_k=1, update_tokens=2)

    assert float(loss) == pytest.approx(1.125, rel=1e-6)


@pytest.mark.parametrize("top_k", [1, 2])
def test_loss_and_gradient_are_those_of_a_slow_loop(top_k):
    logits = [layer.requires_grad_() for layer in random_logits()]
    again = [layer.detach().double().requires_grad_() for layer in logits]
    weights = torch.tensor([1.0, 0, 2, 1, 3, 0, 1, 1, 1, 1, 2])

    loss = balancing_part(logits, weights, top_k=top_k, update_tokens=float(weights.sum()))
    expected = slow_loss(again, weights, top_k)
    loss.backward()
    expected.backward()

    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for layer, other in zip(logits, again, strict=True):
        torch.testing.assert_close(layer.grad.double(), other.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("top_k", [1, 3])
def test_the_loss_is_transformers_own(top_k):
    logits = random_logits()
    weights = torch.tensor([1.0, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1])

    loss = balancing_part(logits, weights, top_k=top_k, update_tokens=9)

    expected = load_balancing_loss_func(tuple(logits), 5, top_k, weights[None])
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-6)


def test_an_even_load_has_k_and_a_single_expert_has_the_number_of_experts():
    even = [torch.eye(6) * 1e-4]  # each expert is the best of one token, by a little
    alone = [torch.tensor([[50.0, 0, 0, 0]]).repeat(7, 1)]

    assert float(balancing_part(even, torch.ones(6), top_k=1, update_tokens=6)) == pytest.approx(1)
    assert float(balancing_part(alone, torch.ones(7), top_k=1, update_tokens=7)) == pytest.approx(4)


def test_parts_add_up_to_the_mean_of_micro_batches_weighted_by_tokens():
    logits = random_logits(num_tokens=12)
    cuts = [(0, 3), (3, 8), (8, 12)]
    parts = [
        balancing_part(
            [layer[a:b] for layer in logits], torch.ones(b - a), top_k=2, update_tokens=12
        )
        for a, b in cuts
    ]

    alone = [
        (b - a) / 12 * slow_loss([layer[a:b] for layer in logits], torch.ones(b - a), 2)
        for a, b in cuts
    ]
    assert float(sum(parts)) == pytest.approx(float(sum(alone)), rel=1e-5)


def test_parts_of_ranks_that_share_tokens_add_up_to_the_micro_batch():
    logits = [layer.requires_grad_() for layer in random_logits(num_tokens=10)]
    whole = balancing_part(logits, torch.ones(10), top_k=2, update_tokens=10)
    expected = torch.autograd.grad(whole, logits)
    halves = [slice(0, 4), slice(4, 10)]
    counts = []
    for half in halves:
        balancing_part(
            [layer[half] for layer in logits],
            torch.ones(half.stop - half.start),
            top_k=2,
            update_tokens=10,
            whole=lambda own: counts.append(own) or own,
        )

    parts = [
        balancing_part(
            [layer[half] for layer in logits],
            torch.ones(half.stop - half.start),
            top_k=2,
            update_tokens=10,
            whole=lambda own: sum(counts),
        )
        for half in halves
    ]

    torch.testing.assert_close(sum(parts), whole)
    torch.testing.assert_close(torch.autograd.grad(sum(parts), logits), expected)


def test_no_tokens_give_no_loss():
    (layer,) = random_logits(num_layers=1)
    layer.requires_grad_()

    loss = balancing_part([layer], torch.zeros(11), top_k=2, update_tokens=7)
    loss.backward()

    assert loss.item() == 0.0
    assert not layer.grad.any()

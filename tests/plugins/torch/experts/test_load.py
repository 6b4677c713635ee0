"""How tokens spread over experts."""

import math

import pytest
import torch

from rlhf_torch.experts.load import largest_share, load_entropy, tokens_of_experts


def test_tokens_are_counted_as_often_as_they_stand_for_sequences():
    chosen = torch.tensor([[0, 2], [2, 1], [0, 1]])

    tokens = tokens_of_experts(chosen, torch.tensor([1.0, 2.0, 0.0]), 4)

    assert tokens.tolist() == [1.0, 2.0, 3.0, 0.0]


def test_a_load_by_hand():
    """Of 4 tokens with 2 experts each, 4 go to the first of 3, 3 to the second, 1 to the third."""
    tokens = torch.tensor([4.0, 3.0, 1.0])

    assert float(largest_share(tokens, 2)) == 1.0
    entropy = -(4 / 8 * math.log(4 / 8) + 3 / 8 * math.log(3 / 8) + 1 / 8 * math.log(1 / 8))
    assert float(load_entropy(tokens)) == pytest.approx(entropy / math.log(3), rel=1e-6)


def test_an_even_load_has_the_entropy_1_and_one_expert_alone_0():
    assert float(load_entropy(torch.full((8,), 3.0))) == pytest.approx(1.0, rel=1e-6)
    assert float(largest_share(torch.full((8,), 3.0), 2)) == pytest.approx(2 / 8, rel=1e-6)
    assert float(load_entropy(torch.tensor([0.0, 9.0]))) == 0.0
    assert float(load_entropy(torch.tensor([9.0]))) == 1.0
    assert float(load_entropy(torch.zeros(4))) == 0.0

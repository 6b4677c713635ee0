"""The load of experts: how many tokens each of them gets.

``N`` tokens of a pass, ``E`` experts of a layer.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def tokens_of_experts(
    chosen: Int[Tensor, "N k"], weights: Float[Tensor, " N"], num_experts: int
) -> Float[Tensor, " E"]:
    """Return the sum (E,) of the weights of the tokens that go to each expert.

    Args:
        chosen: the different experts of each token.
        weights: (N,) sequences that each token stands for.
    """
    goes = weights.new_zeros(len(weights), num_experts).scatter_(1, chosen, 1.0)  # (N, E)
    return weights @ goes


def largest_share(tokens: Float[Tensor, " E"], top_k: int) -> Float[Tensor, ""]:
    """Return the share of a layer's tokens that its busiest expert gets: ``top_k / E`` where the load is even, 1 where
    all of them go there.

    Args:
        tokens: tokens of each expert.
        top_k: experts of each token.
    """
    return top_k * _shares(tokens).max()


def load_entropy(tokens: Float[Tensor, " E"]) -> Float[Tensor, ""]:
    """Return the entropy of a layer's load divided by ``ln E``: 1 where it is even, ``ln top_k / ln E`` where all
    tokens go to the same experts. A single expert has 1.

    Args:
        tokens: tokens of each expert.
    """
    shares = _shares(tokens)
    if len(shares) == 1:
        return torch.ones_like(shares[0])
    entropy: Tensor = torch.special.entr(shares).sum()
    return entropy / math.log(len(shares))


def _shares(tokens: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
    return tokens / tokens.sum().clamp_min(1.0)

"""Linear layers that read the same numbers, multiplied in one product.

A product of 256 rows with the 256 columns of a key projection leaves most of a GPU idle; joined with those of query and
value it costs about as much as the largest of them. The joined weights are a copy, which follows the originals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of layers that a model's code applies, in this order, to the same input."""


class _Joined(nn.Module):
    """The weights of several layers, one below the other, and the products that are not asked for yet."""

    def __init__(self, parts: list[nn.Linear], dtype: torch.dtype) -> None:
        super().__init__()
        self.sizes = [part.out_features for part in parts]
        self.weight = _stacked([part.weight for part in parts], dtype)
        biases = [part.bias for part in parts if part.bias is not None]
        self.bias = _stacked(biases, dtype) if biases else None
        self.products: tuple[Tensor, ...] = ()


class _Part(nn.Module):
    """One of the joined layers, in its place in the model.

    The first one multiplies for all. The last one leaves nothing behind, since the products of a prefill are larger
    than the weights.
    """

    def __init__(self, joined: _Joined, number: int) -> None:
        super().__init__()
        self.joined = joined
        self.number = number
        self.out_features = joined.sizes[number]

    def forward(self, x: Tensor) -> Tensor:
        joined = self.joined
        if self.number == 0:
            joined.products = F.linear(x, joined.weight, joined.bias).split(joined.sizes, dim=-1)
        product = joined.products[self.number]
        if self.number == len(joined.sizes) - 1:
            joined.products = ()
        return product


def join_linears(
    model: nn.Module, original: nn.Module, dtype: torch.dtype
) -> list[tuple[Tensor, Tensor]]:
    """Replace sibling layers of ``model`` by parts of joined ones, and return (part of a joined weight, the weight that
    it has to follow) for each.

    Only plain layers are joined: those with an adapter or in 4 bits stay, and those of which some have a bias.

    Args:
        model: has the structure of ``original``; it is changed.
        original: the model whose weights are followed.
        dtype: of the joined weights.
    """
    pairs: list[tuple[Tensor, Tensor]] = []
    sources = dict(original.named_modules())
    for path, parent in list(model.named_modules()):
        for names in SIBLINGS:
            layers = [getattr(parent, name, None) for name in names]
            if not _can_join(layers):
                continue
            own = [getattr(sources[path], name) for name in names]
            joined = _Joined(own, dtype)
            pairs += _followed(joined, own)
            for number, name in enumerate(names):
                setattr(parent, name, _Part(joined, number))
    return pairs


def _can_join(layers: list[object]) -> bool:
    plain = [layer for layer in layers if type(layer) is nn.Linear]
    if len(plain) < len(layers):
        return False
    forms = {(layer.in_features, layer.bias is None, layer.weight.dtype) for layer in plain}
    return len(forms) == 1


def _followed(joined: _Joined, own: list[nn.Linear]) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(joined.weight.split(joined.sizes), (layer.weight for layer in own), strict=True)
    if joined.bias is not None:
        yield from zip(joined.bias.split(joined.sizes), (layer.bias for layer in own), strict=True)


def _stacked(parts: Sequence[Tensor], dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.cat([part.detach().to(dtype) for part in parts]), requires_grad=False)

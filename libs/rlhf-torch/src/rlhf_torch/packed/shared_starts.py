"""Shared starts: sequences that begin alike, whose common tokens the model computes once.

The sequences of a group are the paths of a tree. Each node of the tree is computed once, a token attends to its
ancestors only, and its position is its depth. Everything that a model does token by token (matmuls, norms,
embeddings) is the same for a node in each sequence that goes through it, and so are its keys and values, since a
causal model does not look ahead. So the row that the model gets has each node once, and only attention sees whole
sequences: queries, keys and values are copied to all places that they stand for before attention, and the outputs of
the row's own places are kept after it. The gradient of a shared key or value is the sum over its places. The result
equals that of whole sequences up to rounding. ``branches.py`` spares the copies of queries as well.

Axes beyond the project's table:

========== =====================================================================
``F``      tokens of the whole sequences, shared ones counted in each
``S``      tokens of the row in one class: each stands for about as many places
``C``      most places for which a token of the class stands
``H_kv``   heads of keys and values
``D_head`` size of a head
========== =====================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core.objective import on_device

from .attention import Layout, as_matmul_inputs


def places_of(
    offsets: NDArray[np.int64], starts: Sequence[int], sources: Sequence[int]
) -> NDArray[np.int64] | None:
    """Return the index (F,) of each token of whole sequences in the row that has each shared start once; None if no
    sequence begins with tokens of an earlier one.

    A sequence's other tokens are its own: they are neighbors in the row, in the order of sequences.

    Args:
        offsets: (b + 1,) positions at which sequences begin, and the end.
        starts: (b,) the number of leading tokens that a sequence shares.
        sources: (b,) index of the earlier sequence that begins with them; without meaning where there are none.
    """
    if not any(starts):
        return None
    every = np.arange(int(offsets[-1]))
    owner = every.copy()
    for row, (start, source) in enumerate(zip(starts, sources, strict=True)):
        first, before = int(offsets[row]), int(offsets[source])
        owner[first : first + start] = owner[before : before + start]
    kept = np.flatnonzero(owner == every)
    return np.searchsorted(kept, owner)


class _SharedTokens(NamedTuple):
    """Tokens of the row that stand for about equally many tokens, so that few columns are left over."""

    shared: Tensor
    """(S,) indices in the row."""
    copies: Tensor
    """(S, C) indices of the tokens that each of them stands for."""
    is_copy: Tensor
    """(S, C) False in columns left over."""


class Copies:
    """Tokens at ``F`` places that ``N`` tokens of a row stand for.

    Args:
        place: (F,) index in the row of the token at each place; each of the N occurs.
    """

    def __init__(self, place: NDArray[np.int64], device: torch.device) -> None:
        self.place = on_device(place, device)
        counts = np.bincount(place)  # (N,)
        firsts = np.cumsum(counts) - counts
        by_token = np.argsort(place, kind="stable")  # (F,) places, those of one token together
        self.kept = on_device(by_token[firsts], device)
        """(N,) the first place of each token."""
        is_first = np.zeros(len(place), dtype=bool)
        is_first[by_token[firsts]] = True
        self.repeated = on_device(np.flatnonzero(~is_first), device)
        """(F - N,) the other places."""
        self.shared: list[_SharedTokens] = []
        bits = np.frexp(counts - 0.5)[1]  # (N,) counts up to 2 ** bits
        for size in np.unique(bits[counts > 1]).tolist():
            tokens = np.flatnonzero((bits == size) & (counts > 1))
            columns = np.arange(int(counts[tokens].max()))
            is_copy = columns < counts[tokens, None]
            index = np.where(is_copy, firsts[tokens, None] + columns, 0)
            parts = tokens, by_token[index], is_copy
            self.shared.append(_SharedTokens(*(on_device(part, device) for part in parts)))

    def spread(self, part: Tensor, *, adds: bool = True) -> Tensor:
        """Return the part (1, H, N, D_head) at all places: (1, H, F, D_head).

        Args:
            adds: the gradient of a token is the sum over its places; False: that of its first place, for a result that
                is used there alone.
        """
        spread: Tensor = _Spread.apply(part, self, adds)  # type: ignore[no-untyped-call]
        return spread


class SharedLayout:
    """Attention of a row that has each shared start once, computed by the layout of the whole sequences.

    Args:
        place: (F,) index in the row of each token of the whole sequences.
    """

    def __init__(self, whole: Layout, place: NDArray[np.int64], device: torch.device) -> None:
        self._whole = whole
        self.copies = Copies(place, device)
        self.kept = self.copies.kept
        self.place = self.copies.place

    def sequence_lengths(self, at_least: int) -> Tensor:
        """Return the length (N,), on the host, of the sequence of each token; ``at_least`` for shorter ones.

        Raises:
            RuntimeError: a token stands for tokens of sequences that differ in length.
        """
        return lengths_of_kept(self._whole, self.kept, self.place, at_least)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, **options: Any
    ) -> Tensor:
        query, key, value = as_matmul_inputs(query, key, value)
        # The output is kept at the first place of a token alone, so its query gets a gradient from there alone.
        query = self.copies.spread(query, adds=False)
        key, value = self.copies.spread(key), self.copies.spread(value)
        output = self._whole.attend(layer, query, key, value, **options)
        kept: Tensor = _Keep.apply(output, self.copies)  # type: ignore[no-untyped-call]
        return kept


def lengths_of_kept(whole: Layout, kept: Tensor, place: Tensor, at_least: int) -> Tensor:
    """Return the length (N,), on the host, of the sequence of each token in the row; ``at_least`` for shorter ones.

    Args:
        kept: (N,) the first of the whole sequences' F tokens that each token stands for.
        place: (F,) index in the row of each of these.

    Raises:
        RuntimeError: a token stands for tokens of sequences that differ in length.
    """
    of_all = whole.sequence_lengths(at_least)  # (F,)
    of_kept = of_all[kept.cpu()]
    if not torch.equal(of_kept[place.cpu()], of_all):
        raise RuntimeError(
            "sequences of different lengths share tokens, in a model that rotates them differently for each; "
            "set share_prompts to false in the backend's options"
        )
    return of_kept


class _Spread(torch.autograd.Function):
    """(1, H, N, D_head) to (1, H, F, D_head): copies at all places.

    Gradients are summed in a fixed order, so equal runs stay equal to the bit.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, copies: Copies, adds: bool) -> Tensor:
        ctx.copies, ctx.adds = copies, adds
        return part[0].transpose(0, 1).index_select(0, copies.place).transpose(0, 1)[None]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        copies: Copies = ctx.copies
        # (H, N, D_head) in this order: the graph of a compiled layer would copy any other one into it.
        kept = _selected(grad[0], 1, copies.kept)
        rows = grad[0].transpose(0, 1)  # (F, H, D_head)
        for shared in copies.shared if ctx.adds else ():
            parts = rows.index_select(0, shared.copies.flatten()).unflatten(0, shared.copies.shape)
            parts = parts.masked_fill(~shared.is_copy[..., None, None], 0.0)  # (S, C, H, D_head)
            kept.index_copy_(1, shared.shared, parts.sum(1).transpose(0, 1))
        return kept[None], None, None


class _Keep(torch.autograd.Function):
    """(1, F, H, D_head) to (1, N, H, D_head): the outputs at the row's own places."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, copies: Copies) -> Tensor:
        ctx.copies = copies
        return output.index_select(1, copies.kept)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        copies: Copies = ctx.copies
        whole = grad.index_select(1, copies.place)
        _in_words(whole).index_fill_(1, copies.repeated, 0)
        return whole, None


def _selected(part: Tensor, axis: int, index: Tensor) -> Tensor:
    """Return ``part.index_select(axis, index)``, contiguous."""
    return _in_words(part).index_select(axis, index).view(part.dtype)


def _in_words(part: Tensor) -> Tensor:
    """Return the same memory as integers of 8 bytes where vectors can be cut into them: torch's kernels that copy by an
    index move one number at a time, so they take as much shorter as numbers are fewer."""
    ratio = 8 // part.element_size()
    steps = (*part.stride()[:-1], part.storage_offset(), part.shape[-1])
    can_be_cut = part.stride(-1) == 1 and all(step % ratio == 0 for step in steps)
    return part.view(torch.int64) if can_be_cut else part

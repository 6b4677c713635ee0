"""Shared prompts: sequences that begin with the same prompt, which the model computes once.

The episodes of a group differ only after their prompt. Everything that a model does token by token (matmuls, norms,
embeddings) is the same for the prompt's tokens in each sequence, and so are their keys and values, since a causal model
does not look ahead. So the row that the model gets has each prompt once, and only attention sees whole sequences:
queries, keys and values are copied to all places that they stand for before attention, and the outputs of the row's own
places are kept after it. The gradient of a shared key or value is the sum over its places. The result equals that of
whole sequences up to rounding.

Axes beyond the project's table: ``F`` tokens of the whole sequences, ``S`` tokens of the row that stand for several of
them, ``C`` the most places that one token stands for, ``H_kv`` heads of keys and values, ``D_head`` size of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core.objective import on_device

from .attention import Layout, as_matmul_inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Places of the ``F`` tokens of whole sequences in a row of ``N`` tokens that has each shared start once."""

    kept: NDArray[np.int64]
    """(N,) rising indices of the F tokens that are in the row."""
    place: NDArray[np.int64]
    """(F,) index in the row of each token."""
    shared: NDArray[np.int64]
    """(S,) indices in the row of the tokens that stand for several of the F."""
    copies: NDArray[np.int64]
    """(S, C) indices of the F tokens that each of them stands for; the number F fills the columns left over."""


def places_of(offsets: NDArray[np.int64], starts: Sequence[int]) -> Places | None:
    """Return the places of sequences, each of which shares its first ``starts`` tokens with the sequence before it;
    None if no sequence shares any.

    Args:
        offsets: (b + 1,) positions at which sequences begin, and the end.
        starts: (b,) 0 for the first sequence of a run with one prompt, and the length of that prompt for each of the
            others in the run.
    """
    num_tokens = int(offsets[-1])
    if not any(starts):
        return None
    source = np.arange(num_tokens)
    owner = 0
    copies_of: dict[tuple[int, int], list[int]] = {}
    for row, start in enumerate(starts):
        first = int(offsets[row])
        if not start:
            owner = first
            continue
        source[first : first + start] = np.arange(owner, owner + start)
        copies_of.setdefault((owner, start), [owner]).append(first)
    kept = np.flatnonzero(source == np.arange(num_tokens))
    place = np.searchsorted(kept, source)
    width = max(map(len, copies_of.values()))
    shared, copies = [], []
    for (owner, start), firsts in copies_of.items():
        shared.append(place[owner : owner + start])
        columns = np.full((start, width), num_tokens)
        columns[:, : len(firsts)] = np.arange(start)[:, None] + np.array(firsts)
        copies.append(columns)
    return Places(
        kept=kept, place=place, shared=np.concatenate(shared), copies=np.concatenate(copies)
    )


class SharedLayout:
    """Attention of a row that has each shared start once, computed by the layout of the whole sequences."""

    def __init__(self, whole: Layout, places: Places, device: torch.device) -> None:
        self._whole = whole
        self.kept = on_device(places.kept, device)
        self.place = on_device(places.place, device)
        self.shared = on_device(places.shared, device)
        self.is_copy = on_device(places.copies < len(places.place), device)
        self.copies = on_device(places.copies.clip(max=len(places.place) - 1), device)

    def sequence_lengths(self, at_least: int) -> Tensor:
        """Return the length (N,), on the host, of the sequence of each token; ``at_least`` for shorter ones.

        Raises:
            RuntimeError: a token stands for tokens of sequences that differ in length.
        """
        of_all = self._whole.sequence_lengths(at_least)  # (F,)
        of_kept = of_all[self.kept.cpu()]
        if not torch.equal(of_kept[self.place.cpu()], of_all):
            raise RuntimeError(
                "sequences of different lengths share a prompt, in a model that rotates it differently for each; "
                "set share_prompts to false in the backend's options"
            )
        return of_kept

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, **options: Any
    ) -> Tensor:
        """Return (1, N, H, D_head) for query (1, H, N, D_head), key and value (1, H_kv, N, D_head)."""
        query, key, value = as_matmul_inputs(query, key, value)
        # The output is kept at the first place of a token alone, so its query gets a gradient from there alone.
        query = _Spread.apply(query, self, False)  # type: ignore[no-untyped-call]
        key = _Spread.apply(key, self, True)  # type: ignore[no-untyped-call]
        value = _Spread.apply(value, self, True)  # type: ignore[no-untyped-call]
        output = self._whole.attend(layer, query, key, value, **options)
        kept: Tensor = _Keep.apply(output, self.kept)  # type: ignore[no-untyped-call]
        return kept


class _Spread(torch.autograd.Function):
    """(1, H, N, D_head) to (1, H, F, D_head): copies at all places.

    Gradients are summed in a fixed order, so equal runs stay equal to the bit.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, layout: SharedLayout, adds: bool) -> Tensor:
        ctx.layout, ctx.adds = layout, adds
        return part[0].transpose(0, 1).index_select(0, layout.place).transpose(0, 1)[None]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        layout: SharedLayout = ctx.layout
        rows = grad[0].transpose(0, 1)  # (F, H, D_head)
        kept = rows.index_select(0, layout.kept)
        if ctx.adds:
            parts = rows.index_select(0, layout.copies.flatten()).unflatten(0, layout.copies.shape)
            parts = parts.masked_fill(~layout.is_copy[..., None, None], 0.0)  # (S, C, H, D_head)
            kept.index_copy_(0, layout.shared, parts.sum(1))
        return kept.transpose(0, 1)[None], None, None


class _Keep(torch.autograd.Function):
    """(1, F, H, D_head) to (1, N, H, D_head): the outputs at the row's own places."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.num_tokens = output.shape[1]
        return output.index_select(1, kept)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        whole = grad.new_zeros(1, ctx.num_tokens, *grad.shape[2:])
        return whole.index_copy_(1, kept, grad), None

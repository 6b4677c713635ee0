"""Attention of a row that has each shared start once, branch by branch: queries are computed once too.

What a sequence does not share with an earlier one is its *branch*: the queries of a branch are neighbors in the row,
and its keys are those of the whole sequence, its ancestors and its own. Each branch is attended to by itself, so a
node's query meets its ancestors once, however many sequences go through it. Keys and values are still copied to all
places that they stand for, a copy of ``H_kv`` heads where queries and outputs would be copies of ``H``.

Made for the CPU, where many small calls cost little. Axes: those of ``shared_starts.py``; ``m`` tokens of a branch,
``T`` of its sequence.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .attention import as_matmul_inputs
from .packing import PackedLayout, fused_attention, prefers_materialized
from .score_matrix import attention_in_parts, materialized_attention, tail_mask
from .shared_starts import Copies, lengths_of_kept


class BranchLayout:
    """Attention of a row of ``N`` tokens that has each node of a prefix tree once, one branch after the other.

    Args:
        whole: the layout of the whole sequences.
        starts: (b,) leading tokens that each sequence shares with an earlier one.
        place: (F,) index in the row of each token of the whole sequences.
    """

    def __init__(
        self,
        whole: PackedLayout,
        starts: NDArray[np.int64],
        place: NDArray[np.int64],
        device: torch.device,
    ) -> None:
        self._whole = whole
        lengths = whole.lengths.numpy()
        own = lengths - starts
        branches = own > 0
        self._lengths: list[int] = lengths[branches].tolist()
        self._own: list[int] = own[branches].tolist()
        # Sequences that are the beginning of an earlier one have no query, so nobody asks for their keys.
        self._copies = Copies(place[branches.repeat(lengths)], device)
        self._masks: dict[_Shape, Tensor] = {}
        _, firsts = np.unique(place, return_index=True)
        self.kept = torch.from_numpy(firsts).to(device)
        self.place = torch.from_numpy(place).to(device)

    def sequence_lengths(self, at_least: int) -> Tensor:
        """Return the length (N,), on the host, of the sequence of each token; ``at_least`` for shorter ones.

        Raises:
            RuntimeError: a token stands for tokens of sequences that differ in length.
        """
        return lengths_of_kept(self._whole, self.kept, self.place, at_least)

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float,
        sliding_window: int | None,
        softcap: float | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        query, key, value = as_matmul_inputs(query, key, value)
        branches = zip(
            query.split(self._own, dim=2),
            self._copies.spread(key).split(self._lengths, dim=2),
            self._copies.spread(value).split(self._lengths, dim=2),
            strict=True,
        )
        outputs = [
            self._branch(*branch, scaling, sliding_window, softcap, sinks) for branch in branches
        ]
        return torch.cat([output.transpose(1, 2) for output in outputs], dim=1)

    def _branch(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """Return (1, H, m, D_head) for a branch's queries and the T keys and values of its sequence."""
        own, length = query.shape[2], key.shape[2]
        if window and own + window - 1 < length:
            # No query of the branch sees further back.
            length = own + window - 1
            key, value = key[:, :, -length:], value[:, :, -length:]
        shape = _Shape(own, length, window if window and window < length else None)
        if sinks is not None or softcap is not None:
            mask = self._mask(shape)
            return attention_in_parts(query, key, value, mask, scaling, softcap, sinks)
        if prefers_materialized(query, length):
            return materialized_attention(query, key, value, self._mask(shape), scaling, None)
        is_causal = own == length and shape.window is None
        hidden = None if is_causal else self._mask(shape)
        return fused_attention(query, key, value, scaling, hidden)

    def _mask(self, shape: _Shape) -> Tensor:
        """Return (m, T): True where the query may see the key; the last query is at the last key."""
        if shape not in self._masks:
            self._masks[shape] = tail_mask(*shape, self.place.device)
        return self._masks[shape]


class _Shape(NamedTuple):
    own: int
    length: int
    window: int | None

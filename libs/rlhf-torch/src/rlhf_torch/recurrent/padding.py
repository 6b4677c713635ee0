"""Conversion between sequences that lie one after the other in a row and right-padded rows of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_core.objective import on_device


class Padding:
    """Places of ``b`` sequences in a row of ``N`` tokens, and in a batch (b, T) with T the longest length.

    Args:
        offsets: (b + 1,) increasing positions, on the host; sequence i is ``row[offsets[i]:offsets[i + 1]]``.
    """

    def __init__(self, offsets: Tensor, device: torch.device) -> None:
        lengths = offsets.diff()
        longest = int(lengths.max())
        self._shape = (len(lengths), longest)
        self._is_even = bool((lengths == longest).all())
        steps = torch.arange(longest)
        is_token = steps < lengths[:, None]  # (b, T)
        # Padding reads token 0. Any finite value would do: no real token sees it, and what is there is dropped.
        there = torch.where(is_token, offsets[:-1, None] + steps, 0)
        self._there = on_device(there.flatten(), device)  # (b * T,)
        self._back = on_device(is_token.flatten().nonzero()[:, 0], device)  # (N,)

    def pad(self, rows: Tensor) -> Tensor:
        """Return (b, T, ...) for (N, ...)."""
        # The gradient of an index would be a copy into zeros; sequences of one length need none.
        if not self._is_even:
            rows = rows.index_select(0, self._there)
        padded: Tensor = rows.unflatten(0, self._shape)
        return padded

    def unpad(self, padded: Tensor) -> Tensor:
        """Return (N, ...) for (b, T, ...)."""
        rows = padded.flatten(0, 1)
        return rows if self._is_even else rows.index_select(0, self._back)

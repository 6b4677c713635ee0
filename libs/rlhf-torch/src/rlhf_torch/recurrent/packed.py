"""Recurrent layers over packed sequences: each starts from a state of its own, whatever lies before it in the row.

The state is empty where a sequence begins, and a given one where its beginning was computed before.

A convolution reads the row with ``W - 1`` zeros before each sequence, as a sequence alone begins; sequences of one
length are rows of a batch instead. The delta rule of
``flash-linear-attention`` knows where sequences of a row begin; without it the sequences are laid out right-padded,
where a padding token has decay 1 and strength 0, so that it leaves the state as it is.

Axes: those of ``sequences.py``; ``T`` is the length of the longest sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_core.objective import on_device

from .padding import Padding
from .sequences import Convolution, DeltaRule, Parts


class PackedSequences:
    """``b`` sequences that lie one after the other in a row of ``N`` tokens.

    Args:
        offsets: (b + 1,) increasing positions, on the host; sequence i is ``row[offsets[i]:offsets[i + 1]]``.
        real: (b,) leading tokens of each sequence that are its own; what follows is padding that leaves the state as it
            is. None: all are.
    """

    def __init__(
        self, offsets: Sequence[int] | Tensor, device: torch.device, real: Tensor | None = None
    ) -> None:
        self.offsets = torch.as_tensor(offsets, dtype=torch.int64)
        self.lengths = self.offsets.diff()  # (b,)
        self.real = self.lengths if real is None else real
        self.device = device
        self._spaces: dict[int, Tensor] = {}

    def convolve(
        self, layer: int, convolution: Convolution, inputs: Tensor, tails: Tensor | None = None
    ) -> Tensor:
        """Return the convolution (1, C, N) of inputs (1, C, N), each sequence from its own beginning.

        Args:
            tails: (b, C, W - 1) inputs before each sequence; None: zeros, as a sequence begins.
        """
        gap = convolution.taps - 1
        if self._is_even:
            # As rows of a batch, of which each has its bits whatever the others are.
            rows = inputs[0].unflatten(1, (len(self.lengths), -1)).transpose(0, 1)  # (b, C, T)
            if tails is not None:
                rows = torch.cat([tails, rows], dim=2)
            even: Tensor = convolution.function(rows)
            if tails is not None:
                even = even[..., gap:]
            return even.transpose(0, 1).flatten(1)[None]
        if gap not in self._spaces:
            numbers = torch.arange(1, len(self.lengths) + 1).repeat_interleave(self.lengths)
            spaced = torch.arange(int(self.offsets[-1])) + gap * numbers
            self._spaces[gap] = on_device(spaced, self.device)
        there = self._spaces[gap]
        row = inputs.new_zeros(1, inputs.shape[1], int(self.offsets[-1]) + gap * len(self.lengths))
        if tails is not None:
            first = self.offsets[:-1] + gap * torch.arange(len(self.lengths))  # (b,)
            spaces = (first[:, None] + torch.arange(gap)).flatten()
            row[0, :, on_device(spaces, self.device)] = tails.transpose(0, 1).flatten(1)
        convolved: Tensor = convolution.function(row.index_copy(2, there, inputs))
        return convolved.index_select(2, there)

    def delta_rule(self, layer: int, rule: DeltaRule, parts: Parts) -> Tensor:
        kernel = rule.packed(parts)
        if kernel is None:
            return self.final_states(rule, parts).outputs
        query, key, value, g, beta = parts
        packed: Tensor = kernel(query, key, value, g=g, beta=beta, cu_seqlens=self._starts)[0]
        return packed

    @cached_property
    def _is_even(self) -> bool:
        return bool((self.lengths == self.lengths[0]).all())

    @cached_property
    def _starts(self) -> Tensor:
        """``offsets`` on the device: every layer of a pass asks for them."""
        return on_device(self.offsets, self.device)

    def final_states(self, rule: DeltaRule, parts: Parts, states: Tensor | None = None) -> Computed:
        """Return the outputs, and the state behind each sequence's last own token.

        Args:
            states: (b, H, K, V) before each sequence; None: zeros, as a sequence begins.
        """
        padding = self._padding
        padded = parts.map(lambda part: padding.pad(part[0]))
        hidden = self._is_padding[..., None]  # (b, T, 1)
        outputs, behind = rule.rows(
            padded._replace(
                g=padded.g.masked_fill(hidden, 0.0), beta=padded.beta.masked_fill(hidden, 0.0)
            ),
            states,
        )
        return Computed(padding.unpad(outputs)[None], behind)

    @cached_property
    def _padding(self) -> Padding:
        return Padding(self.offsets, self.device)

    @cached_property
    def _is_padding(self) -> Tensor:
        """(b, T) on the device: True behind a sequence's own tokens."""
        steps = torch.arange(int(self.lengths.max()))
        return on_device(steps >= self.real[:, None], self.device)


class Computed(NamedTuple):
    """Outputs of the delta rule."""

    outputs: Tensor
    """(1, N, H, V)"""
    states: Tensor
    """(b, H, K, V)"""

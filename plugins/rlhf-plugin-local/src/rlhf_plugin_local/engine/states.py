"""States of recurrent layers: one row per slot and layer, filled from prompts and taken on token by token.

Where attention keeps keys and values of all tokens, gated linear attention keeps one matrix for each head, and the last
inputs of its convolution. Samples of a prompt start from copies of its state.

Axes: ``S`` rows, ``R`` rows decoded together, ``P`` distinct prompts, ``N`` tokens of the packed row, ``C`` channels
and ``W`` taps of a convolution, ``H`` heads, ``K`` and ``V`` sizes of a key and of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from rlhf_torch.recurrent.packed import PackedSequences
from rlhf_torch.recurrent.sequences import Convolution, DeltaRule, Parts

from .prefill import PackedPrompts


class RecurrentStates:
    """The state of each slot, allocated when a layer first writes.

    Args:
        num_rows: S.
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self.num_rows = num_rows
        self.device = device
        self.tails: dict[int, Tensor] = {}
        """By layer (S, C, W - 1): the last inputs of the convolution, oldest first."""
        self.memories: dict[int, Tensor] = {}
        """By layer (S, H, K, V): the matrix of the delta rule, in the type that its function returns."""

    def write(self, store: dict[int, Tensor], layer: int, rows: Tensor, new: Tensor) -> None:
        """Store the new tails or memories (M, ...) of rows (M,)."""
        if layer not in store:
            shape = (self.num_rows, *new.shape[1:])
            store[layer] = torch.zeros(shape, dtype=new.dtype, device=self.device)
        store[layer].index_copy_(0, rows, new)

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy the rows ``source`` onto the rows ``target``."""
        for kept in self._all():
            kept[target] = kept[source]

    def erase(self, row: int) -> None:
        """Set a row to zeros: what is not a number would stay in it."""
        for kept in self._all():
            kept[row] = 0

    def clear(self) -> None:
        """Free the memory."""
        self.tails.clear()
        self.memories.clear()

    def _all(self) -> list[Tensor]:
        return [*self.tails.values(), *self.memories.values()]


class PrefillSequences:
    """Recurrent layers over packed prompts; the states behind them also go to the slots.

    Prompts of different padded lengths are computed in separate calls on a CPU, as ``PrefillLayout`` does.

    Args:
        owners: for each slot from ``first`` on, the prompt that it continues.
    """

    def __init__(
        self,
        prompts: PackedPrompts,
        states: RecurrentStates,
        owners: Sequence[int],
        first: int,
    ) -> None:
        device, parts = states.device, prompts.computed_together()
        self._states = states
        self._sizes = [sum(part) for part in parts]
        own = torch.tensor(prompts.lengths)
        self._parts = [
            PackedSequences([0, *accumulate(part)], device, lengths)
            for part, lengths in zip(parts, own.split([len(part) for part in parts]), strict=True)
        ]
        places = {prompt: place for place, prompt in enumerate(prompts.order)}
        self._sources = torch.tensor([places[owner] for owner in owners], device=device)
        self._rows = torch.arange(first, first + len(owners), device=device)
        starts = torch.tensor([0, *accumulate(prompts.padded_lengths)][:-1])
        self._last = (starts + own).to(device)
        """(P,) the index behind each prompt's last own token."""
        self._own = own.to(device)

    def convolve(self, layer: int, convolution: Convolution, inputs: Tensor) -> Tensor:
        """Return the convolution (1, C, N) of inputs (1, C, N), and keep the last inputs of each prompt."""
        behind = torch.arange(convolution.taps - 1, 0, -1, device=inputs.device)  # (W - 1,)
        index = (self._last[:, None] - behind).clamp(min=0)
        tails = inputs[0][:, index].transpose(0, 1)  # (P, C, W - 1)
        # A prompt that is shorter than the taps begins with zeros.
        tails = tails.masked_fill((behind > self._own[:, None])[:, None], 0.0)
        self._states.write(self._states.tails, layer, self._rows, tails[self._sources])
        pieces = zip(self._parts, inputs.split(self._sizes, dim=2), strict=True)
        return torch.cat([part.convolve(layer, convolution, own) for part, own in pieces], dim=2)

    def delta_rule(self, layer: int, rule: DeltaRule, parts: Parts) -> Tensor:
        """Return the outputs (1, N, H, V), and keep the state behind each prompt."""
        split = zip(*(part.split(self._sizes, dim=1) for part in parts), strict=True)
        computed = [
            sequences.final_states(rule, Parts(*own))
            for sequences, own in zip(self._parts, split, strict=True)
        ]
        memories = torch.cat([each.states for each in computed])  # (P, H, K, V)
        self._states.write(self._states.memories, layer, self._rows, memories[self._sources])
        return torch.cat([each.outputs for each in computed], dim=1)


class DecodeSequences:
    """One token of each of the rows 0 to R - 1, computed from its row's state, which it takes on.

    Args:
        num_rows: R.
    """

    def __init__(self, states: RecurrentStates, num_rows: int) -> None:
        self._states = states
        self._num_rows = num_rows

    def convolve(self, layer: int, convolution: Convolution, inputs: Tensor) -> Tensor:
        """Return the convolution (1, C, R) at the tokens (1, C, R)."""
        tails = self._states.tails[layer][: self._num_rows]
        rows = torch.cat([tails, inputs[0].T[..., None]], dim=2)  # (R, C, W)
        tails.copy_(rows[..., 1:])
        convolved: Tensor = convolution.function(rows)
        return convolved[..., -1].T[None]

    def delta_rule(self, layer: int, rule: DeltaRule, parts: Parts) -> Tensor:
        """Return the outputs (1, R, H, V)."""
        memories = self._states.memories[layer][: self._num_rows]
        outputs, states = rule.step(parts.map(lambda part: part.transpose(0, 1)), memories)
        memories.copy_(states)
        return outputs.transpose(0, 1)

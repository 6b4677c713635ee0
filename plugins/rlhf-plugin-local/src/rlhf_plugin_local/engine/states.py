"""States of recurrent layers: one row per slot and layer, filled from prompts and taken on token by token.

Where attention keeps keys and values of all tokens, gated linear attention keeps one matrix for each head, and the last
inputs of its convolution. Samples of a prompt start from copies of its state, and a later turn from a copy of the state
that the turn before has left.

Axes: ``S`` rows, ``R`` rows decoded together, ``P`` distinct prompts, ``N`` tokens of the packed row, ``C`` channels
and ``W`` taps of a convolution, ``H`` heads, ``K`` and ``V`` sizes of a key and of a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        for kept in self.stores():
            kept[target] = kept[source]

    def erase(self, row: int) -> None:
        """Set a row to zeros: what is not a number would stay in it."""
        for kept in self.stores():
            kept[row] = 0

    def clear(self) -> None:
        """Free the memory."""
        self.tails.clear()
        self.memories.clear()

    def stores(self) -> list[Tensor]:
        """Return all that a row has (S, ...): one tensor for each layer and kind, in an order that stays."""
        return [*self.tails.values(), *self.memories.values()]


class PrefillSequences:
    """Recurrent layers over packed prompts; the states behind them also go to the slots.

    Prompts of different padded lengths are computed in separate calls on a CPU, as ``PrefillLayout`` does.

    Args:
        owners: for each slot from ``first`` on, the prompt that it continues.
        resumed: by prompt whose beginning was computed before, the slot that has the state behind it; what is packed
            goes on from there.
    """

    def __init__(
        self,
        prompts: PackedPrompts,
        states: RecurrentStates,
        owners: Sequence[int],
        first: int,
        resumed: Mapping[int, int] | None = None,
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
        slots = [(resumed or {}).get(prompt) for prompt in prompts.order]
        self._is_resumed = bool(resumed)
        self._slots = torch.tensor([slot or 0 for slot in slots], device=device)
        """(P,) where a prompt's state so far is."""
        self._is_new = torch.tensor([slot is None for slot in slots], device=device)
        """(P,) True for a prompt that begins here, from zeros."""

    def convolve(self, layer: int, convolution: Convolution, inputs: Tensor) -> Tensor:
        """Return the convolution (1, C, N) of inputs (1, C, N), and keep the last inputs of each prompt."""
        before = self._before(self._states.tails, layer)
        behind = torch.arange(convolution.taps - 1, 0, -1, device=inputs.device)  # (W - 1,)
        index = (self._last[:, None] - behind).clamp(min=0)
        tails = inputs[0][:, index].transpose(0, 1)  # (P, C, W - 1)
        # What is packed of a prompt may be shorter than the taps: its tail then begins with what was before.
        is_before = (behind > self._own[:, None])[:, None]  # (P, 1, W - 1)
        if before is None:
            tails = tails.masked_fill(is_before, 0.0)
        else:
            left = self._own[:, None] + torch.arange(convolution.taps - 1, device=inputs.device)
            older = left.clamp(max=convolution.taps - 2)[:, None].expand_as(before)
            tails = torch.where(is_before, before.gather(2, older), tails)
        self._states.write(self._states.tails, layer, self._rows, tails[self._sources])
        pieces = zip(
            self._parts, inputs.split(self._sizes, dim=2), self._by_part(before), strict=True
        )
        return torch.cat(
            [part.convolve(layer, convolution, own, tail) for part, own, tail in pieces], dim=2
        )

    def delta_rule(self, layer: int, rule: DeltaRule, parts: Parts) -> Tensor:
        """Return the outputs (1, N, H, V), and keep the state behind each prompt."""
        split = zip(*(part.split(self._sizes, dim=1) for part in parts), strict=True)
        before = self._by_part(self._before(self._states.memories, layer))
        computed = [
            sequences.final_states(rule, Parts(*own), states)
            for sequences, own, states in zip(self._parts, split, before, strict=True)
        ]
        memories = torch.cat([each.states for each in computed])  # (P, H, K, V)
        self._states.write(self._states.memories, layer, self._rows, memories[self._sources])
        return torch.cat([each.outputs for each in computed], dim=1)

    def _before(self, store: dict[int, Tensor], layer: int) -> Tensor | None:
        """Return the tails or memories (P, ...) before what is packed; None: all prompts begin here."""
        if not self._is_resumed:
            return None
        found = store[layer][self._slots]
        return found.masked_fill(self._is_new.view(-1, *[1] * (found.dim() - 1)), 0.0)

    def _by_part(self, before: Tensor | None) -> Sequence[Tensor | None]:
        """Return what is before the prompts of each part."""
        if before is None:
            return [None] * len(self._parts)
        split: Sequence[Tensor] = before.split([len(part.lengths) for part in self._parts])
        return split


class DecodeSequences:
    """One token of each of the rows 0 to R - 1, computed from its row's state, which it takes on.

    Args:
        num_rows: R.
        alive: (R,) rows whose state is taken on; that of the others stands still. None: all.
    """

    def __init__(self, states: RecurrentStates, num_rows: int, alive: Tensor | None = None) -> None:
        self._states = states
        self._num_rows = num_rows
        self._still = None if alive is None else ~alive

    def convolve(self, layer: int, convolution: Convolution, inputs: Tensor) -> Tensor:
        """Return the convolution (1, C, R) at the tokens (1, C, R)."""
        tails = self._states.tails[layer][: self._num_rows]
        rows = torch.cat([tails, inputs[0].T[..., None]], dim=2)  # (R, C, W)
        new = rows[..., 1:]
        if self._still is not None:
            new = torch.where(self._still[:, None, None], rows[..., :-1], new)
        tails.copy_(new)
        convolved: Tensor = convolution.function(rows)
        return convolved[..., -1].T[None]

    def delta_rule(self, layer: int, rule: DeltaRule, parts: Parts) -> Tensor:
        """Return the outputs (1, R, H, V)."""
        memories = self._states.memories[layer][: self._num_rows]
        if self._still is not None:
            # Decay 1 and strength 0 leave a memory as it is, without a pass over the memories.
            still = self._still[:, None]
            parts = parts._replace(
                g=parts.g.masked_fill(still, 0.0), beta=parts.beta.masked_fill(still, 0.0)
            )
        outputs, states = rule.step(parts.map(lambda part: part.transpose(0, 1)), memories)
        memories.copy_(states)
        return outputs.transpose(0, 1)

"""Prompts: packed into one row, computed once each, their keys and values copied to the slots that start from them.

Axes: ``P`` distinct prompts, ``N`` tokens of the packed row, ``M`` tokens copied to the cache, ``K`` head dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rlhf_torch.packed.packing import Blocks, PackedLayout
from rlhf_torch.recurrent.sequences import Sequences
from rlhf_torch.vision.pictures import PackedImages, PictureReader, packed_images

from .cache import KVCache, round_up
from .sequence import Prompt

ROW_MULTIPLE = 8
"""Rows of a matrix product come in multiples of this. With it the CPU kernels give each row the same bits whatever
the other rows are (measured for float32 and bfloat16, 1 to 16 threads); with fewer than 4 rows, or some odd numbers
of them, they do not."""
MOST_READ = 16
"""Tokens whose keys one pass may read, for each token that it may compute: it copies the keys out of their pages."""


class KeyValueStore(Protocol):
    """A cache as far as a prefill sees it."""

    def index(self, num_heads: int, rows: Tensor, positions: Tensor) -> Tensor:
        """Return the places (M * num_heads,) of the given positions (M,) of rows (M,)."""

    def write(self, layer: int, key: Tensor, value: Tensor, index: Tensor) -> None:
        """Store keys and values (M, H_kv, K) at ``index``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedPrompts:
    """Prompts one after the other, shortest first, each padded at its end to a multiple of ``ROW_MULTIPLE``."""

    tokens: Tensor
    """(N,)"""
    positions: Tensor
    """(N,) of each token in its prompt."""
    rope_positions: Tensor
    """(N,) or (3, N): what rotary embeddings read; that of images is not their place in the prompt."""
    shifts: list[int]
    """(P,) what has to be added to the position of a token behind each prompt for rotary embeddings."""
    images: PackedImages | None
    """Images of the prompts; None: they have none."""
    blocks: Blocks | None
    """Tokens of images that see each other; None: all tokens look back."""
    starts: list[int]
    """(P,) where each prompt's computed tokens begin, in the order in which the prompts were given."""
    order: list[int]
    """(P,) the prompts in the order of the row."""
    padded_lengths: list[int]
    """(P,) in the order of the row: not decreasing."""
    lengths: list[int]
    """(P,) computed tokens of each prompt without its padding, in the order of the row."""

    @classmethod
    def pack(
        cls,
        prompts: Sequence[Prompt],
        device: torch.device,
        reader: PictureReader | None = None,
        known: Sequence[int] | None = None,
    ) -> PackedPrompts:
        """Pack prompts, none of them empty.

        Args:
            reader: reads images; None: the model reads text alone.
            known: (P,) leading tokens of each prompt that are in the cache already and not in the row, fewer than all;
                None: 0 each.

        Raises:
            PluginError: the tokens of an image are not those of the model's processor.
            DataError: an image is gone from the run's store.
        """
        # Shortest first, so that prompts of one padded length are neighbors, which a CPU computes in one call.
        known = known or [0] * len(prompts)
        new = [len(prompt.token_ids) - past for prompt, past in zip(prompts, known, strict=True)]
        order = sorted(range(len(prompts)), key=new.__getitem__)
        tokens: list[int] = []
        positions: list[int] = []
        starts = [0] * len(prompts)
        lengths = [round_up(new[prompt], ROW_MULTIPLE) for prompt in order]
        for prompt, length in zip(order, lengths, strict=True):
            ids = prompts[prompt].token_ids[known[prompt] :]
            starts[prompt] = len(tokens)
            tokens.extend(ids)
            # Padding follows its prompt, so causality alone hides it; any valid token does.
            tokens.extend(ids[-1:] * (length - len(ids)))
            positions.extend(range(known[prompt], known[prompt] + length))
        # Images bring positions of their own; without any a token's position is its place.
        own_positions = torch.tensor(positions, device=device)
        placed = [(starts[one], prompts[one], known[one]) for one in order]
        seen = _seen(placed, lengths, reader, device)
        return cls(
            tokens=torch.tensor(tokens, device=device),
            positions=own_positions,
            rope_positions=own_positions if seen is None else seen.positions,
            shifts=[0] * len(prompts)
            if seen is None
            else [seen.shifts[starts[p]] for p in range(len(prompts))],
            images=None if seen is None else seen.images,
            blocks=None if seen is None else seen.blocks,
            starts=starts,
            order=order,
            padded_lengths=lengths,
            lengths=[new[prompt] for prompt in order],
        )

    def computed_together(self) -> list[list[int]]:
        """Return the padded lengths of neighboring prompts that one call may compute: all; on a CPU those of one
        length."""
        if self.tokens.device.type != "cpu":
            return [self.padded_lengths]
        return [list(group) for _, group in groupby(self.padded_lengths)]


class _Seen(NamedTuple):
    positions: Tensor
    shifts: dict[int, int]
    """By the index of a prompt's first token."""
    images: PackedImages | None
    blocks: Blocks | None


def _seen(
    prompts: Sequence[tuple[int, Prompt, int]],
    padded_lengths: Sequence[int],
    reader: PictureReader | None,
    device: torch.device,
) -> _Seen | None:
    """Return positions and images of packed prompts, for a model that reads images.

    Args:
        prompts: each with the index of its first token in the row and the number of leading tokens that are not there,
            in the order of the row.
    """
    if reader is None:
        return None
    rows = [
        (first, reader.row(prompt.token_ids, prompt.media, "a prompt").behind(known))
        for first, prompt, known in prompts
    ]
    positions = [
        # Padding may stand anywhere: no token looks at it.
        torch.nn.functional.pad(row.positions, (0, padded - row.positions.shape[-1]))
        for (_, row), padded in zip(rows, padded_lengths, strict=True)
    ]
    return _Seen(
        torch.cat(positions, dim=-1).to(device),
        {first: row.shift for first, row in rows},
        packed_images(rows, device),
        reader.blocks(rows, sum(padded_lengths), device),
    )


def distinct(prompts: Iterable[Prompt], *, share: bool) -> tuple[list[Prompt], list[int]]:
    """Return the prompts to compute, and for each given prompt which of them it is.

    Args:
        share: compute equal prompts once.
    """
    prompts = list(prompts)
    if not share:
        return prompts, list(range(len(prompts)))
    number: dict[Prompt, int] = {}
    owner = [number.setdefault(prompt, len(number)) for prompt in prompts]
    return list(number), owner


class CacheWriter:
    """Sends keys and values of ``M`` tokens of the packed row to the cache, rounded as the trainer's attention rounds
    them.

    Args:
        source: (M,) index of each token in the packed row.
        rows: (M,) row of the cache for each token.
        positions: (M,) position of each token in its row of the cache.
    """

    def __init__(
        self,
        cache: KeyValueStore,
        compute_dtype: torch.dtype,
        *,
        source: Tensor,
        rows: Tensor,
        positions: Tensor,
    ) -> None:
        self.source, self.rows, self.positions = source, rows, positions
        self._cache = cache
        self._compute_dtype = compute_dtype
        self._index: dict[int, Tensor] = {}

    @classmethod
    def of(
        cls,
        starts: Sequence[int],
        lengths: Sequence[int],
        first_row: int,
        cache: KVCache,
        compute_dtype: torch.dtype,
    ) -> CacheWriter:
        """Send prompt i, which begins at ``starts[i]``, to row ``first_row + i``; starts may repeat."""
        length, device = torch.tensor(lengths), cache.device
        rows = torch.repeat_interleave(torch.arange(first_row, first_row + len(lengths)), length)
        ends = length.cumsum(0)
        positions = torch.arange(int(ends[-1])) - torch.repeat_interleave(ends - length, length)
        source = torch.repeat_interleave(torch.tensor(starts), length) + positions
        return cls(
            cache,
            compute_dtype,
            source=source.to(device),
            rows=rows.to(device),
            positions=positions.to(device),
        )

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store what of keys and values (1, H_kv, N, K) the cache is to have."""
        num_heads = key.shape[1]
        if num_heads not in self._index:
            self._index[num_heads] = self._cache.index(num_heads, self.rows, self.positions)
        keys, values = (
            part[0].transpose(0, 1)[self.source].to(self._compute_dtype) for part in (key, value)
        )  # (M, H_kv, K)
        self._cache.write(layer, keys, values, self._index[num_heads])


class PrefillLayout:
    """Causal attention within each packed prompt; keys and values also go to the cache.

    On a CPU, prompts of different padded lengths are attended to in separate calls: the fused kernel cuts a batch by
    its longest sequence, and the last bits of a prompt would depend on what it was packed with.

    Args:
        sequences: what recurrent layers ask; None: the model has none.
    """

    def __init__(
        self,
        prompts: PackedPrompts,
        writer: CacheWriter,
        sequences: Sequences | None = None,
    ) -> None:
        self.sequences = sequences
        self._writer = writer
        device = prompts.tokens.device
        parts = prompts.computed_together()
        self.sizes = [sum(part) for part in parts]
        blocks = [None] * len(parts) if prompts.blocks is None else prompts.blocks.split(self.sizes)
        self.parts = [
            PackedLayout([0, *accumulate(part)], device, own)
            for part, own in zip(parts, blocks, strict=True)
        ]

    def sequence_lengths(self, at_least: int) -> Tensor:
        """(N,) ``at_least`` everywhere: what the engine serves is no longer than lengths that matter."""
        return torch.full((sum(self.sizes),), at_least)

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
        """Return (1, N, H, K) for query (1, H, N, K), key and value (1, H_kv, N, K)."""
        self._writer.write(layer, key, value)
        pieces = zip(
            self.parts,
            *(part.split(self.sizes, dim=2) for part in (query, key, value)),
            strict=True,
        )
        attend = partial(
            PackedLayout.attend,
            scaling=scaling,
            sliding_window=sliding_window,
            softcap=softcap,
            sinks=sinks,
        )
        outputs = [attend(layout, layer, q, k, v) for layout, q, k, v in pieces]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

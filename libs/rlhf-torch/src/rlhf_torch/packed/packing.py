"""Attention over packed sequences: several sequences in one row, each causal and blind to the others.

On a GPU in half precision torch's varlen kernel computes it directly. Elsewhere the sequences are laid out
right-padded, where the causal mask alone already hides the padding from every real token, and packed again afterwards.
Both ways are exact. Several sequences of one length need no padding: from Hopper on cuDNN's kernel computes them, in
little more than half the time of the varlen kernel. (cuDNN prepares a kernel for each new shape; for rows of a single
sequence, whose length changes every time, that would cost more than it saves.)

In some families the tokens of one image see each other, those behind them too. No varlen kernel knows such blocks, so
rows with them are padded everywhere, with a mask for each sequence; in Gemma 4 in layers with a window alone.

Axes beyond the project's table: ``H_kv`` heads of keys and values, ``D_head`` size of a head.
``T`` is the length of the longest sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rlhf_core.objective import on_device

from ..recurrent.packed import PackedSequences
from ..recurrent.padding import Padding
from .attention import as_matmul_inputs
from .score_matrix import attention_in_parts, materialized_attention
from .varlen import Extents, is_there, varlen_attention

CUDNN_FIRST = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
"""Kernels in the order in which torch tries them."""
MAX_MATERIALIZED = 512
"""Longest sequence, in tokens, for which the CPU path keeps a whole score matrix; as many scores for fewer queries."""


class Blocks(NamedTuple):
    """Tokens that see each other whatever their order, as far as a window reaches back."""

    numbers: Int[Tensor, " N"]
    """Number of the block of each token, -1 outside of blocks. A block lies within one sequence."""
    in_windows: bool = False
    """Layers with a window alone know of them; in the others all tokens look back."""

    def hold_for(self, sliding_window: int | None) -> bool:
        """Return whether a layer with this window, or None without one, knows of them."""
        return bool(sliding_window) or not self.in_windows

    def split(self, sizes: Sequence[int]) -> list[Blocks]:
        """Return the blocks of parts of the row, which cut no sequence."""
        return [self._replace(numbers=part) for part in self.numbers.split(list(sizes))]


class PackedLayout:
    """Causal attention within each of ``b`` sequences that lie one after the other in a row of ``N`` tokens.

    Args:
        offsets: (b + 1,) increasing positions, on the host; sequence i is ``row[offsets[i]:offsets[i + 1]]``.
        device: the device of the tokens.
        blocks: tokens that see each other whatever their order; None: there are none.
    """

    def __init__(
        self, offsets: Sequence[int] | Tensor, device: torch.device, blocks: Blocks | None = None
    ) -> None:
        self.blocks = blocks
        self.offsets = torch.as_tensor(offsets, dtype=torch.int64)
        self.lengths = self.offsets.diff()  # (b,)
        self.longest = int(self.lengths.max())
        self.is_even = len(self.lengths) > 1 and bool((self.lengths == self.longest).all())
        """True if the row has several sequences, all of one length."""
        self.device = device
        self.cu_seqlens = on_device(self.offsets.to(torch.int32), device)
        self._masks: dict[tuple[int | None, bool], Tensor] = {}

    def positions(self) -> Int[Tensor, " N"]:
        """Return the position (N,) of each token in its own sequence."""
        starts = self.offsets[:-1].repeat_interleave(self.lengths)
        return on_device(torch.arange(int(self.offsets[-1])) - starts, self.device)

    @cached_property
    def sequences(self) -> PackedSequences:
        """Return the sequences as recurrent layers see them."""
        return PackedSequences(self.offsets, self.device)

    def sequence_lengths(self, at_least: int) -> Int[Tensor, " N"]:
        """Return the length (N,), on the host, of the sequence of each token; ``at_least`` for shorter ones."""
        return self.lengths.clamp(min=at_least).repeat_interleave(self.lengths)

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
        # A window that no sequence outgrows hides nothing, and the faster causal kernels may be taken.
        window = sliding_window if sliding_window and sliding_window < self.longest else None
        ahead = self.blocks is not None and self.blocks.hold_for(sliding_window)
        is_causal = window is None and not ahead
        # Fused kernels know neither caps, sinks nor tokens that look ahead.
        is_plain = softcap is None and sinks is None and not ahead
        has_kernel = is_plain and has_varlen_kernel(query)
        in_cudnn = has_kernel and is_causal and self.is_even and _cudnn_is_faster(self.device)
        if has_kernel and not in_cudnn:
            return self._varlen(query, key, value, scaling, window)
        # Every other way computes right-padded rows (b, T).
        query, key, value = (self._padded(part) for part in (query, key, value))
        if in_cudnn:
            # Where cuDNN refuses, torch takes the next kernel in the list.
            with sdpa_kernel(CUDNN_FIRST, set_priority=True):
                output = fused_attention(query, key, value, scaling)
        elif sinks is not None or softcap is not None:
            mask = self._mask(window, ahead)
            output = attention_in_parts(query, key, value, mask, scaling, softcap, sinks)
        elif prefers_materialized(query, self.longest):
            mask = self._mask(window, ahead)
            output = materialized_attention(query, key, value, mask, scaling, softcap)
        else:
            if query.device.type == "cuda":
                # No fused GPU kernel for float32 lets heads share keys, and torch's fallback would keep all scores.
                key, value = _repeated(key, query), _repeated(value, query)
            hidden = None if is_causal else self._mask(window, ahead)
            output = fused_attention(query, key, value, scaling, hidden)
        return self._padding.unpad(output.transpose(1, 2))[None]  # (1, N, H, D_head)

    @cached_property
    def _padding(self) -> Padding:
        return Padding(self.offsets, self.device)

    def _padded(self, packed: Tensor) -> Tensor:
        """Return (b, H, T, D_head) for (1, H, N, D_head)."""
        # The gradient of an index would be a copy into zeros, that of a squeeze is a view.
        return self._padding.pad(packed.squeeze(0).transpose(0, 1)).transpose(1, 2)

    def _varlen(
        self, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        extents = Extents(self.cu_seqlens, self.longest)
        query, key, value = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))
        return varlen_attention(query, key, value, extents, extents, scaling, window)[None]

    def _mask(self, window: int | None, ahead: bool) -> Tensor:
        """Return a mask (T, T), or with blocks (b, 1, T, T): True where the query (first axis) may see the key."""
        if (window, ahead) not in self._masks:
            steps = torch.arange(self.longest, device=self.device)
            behind = steps[:, None] - steps  # (T, T)
            seen = behind >= 0
            if ahead and self.blocks is not None:
                own = self._padded(self.blocks.numbers.view(1, 1, -1, 1))  # (b, 1, T, 1)
                # Padding reads token 0, which may be in a block.
                is_token = steps < on_device(self.lengths, self.device).view(-1, 1, 1, 1)
                in_block = (own >= 0) & is_token.transpose(2, 3)
                seen = seen | (in_block & (own == own.transpose(2, 3)) & is_token)
            self._masks[window, ahead] = seen & (behind < (window or self.longest))
        return self._masks[window, ahead]


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, mask: Tensor | None = None
) -> Tensor:
    """Return what torch's own kernels compute, (b, H, T, D_head); without a mask each query sees what is behind it."""
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _repeated(shared: Tensor, query: Tensor) -> Tensor:
    """Return keys or values with one head for each query head: (b, H_kv, T, D_head) to (b, H, T, D_head)."""
    groups = query.shape[1] // shared.shape[1]
    return shared.repeat_interleave(groups, dim=1) if groups > 1 else shared


def has_varlen_kernel(query: Tensor) -> bool:
    """Return whether the kernel takes queries (..., D_head) of this device and dtype."""
    return (
        query.device.type == "cuda"
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[-1] <= 256
        and query.shape[-1] % 8 == 0
        and is_there()
    )


def prefers_materialized(query: Tensor, longest: int) -> bool:
    """Return whether keeping the scores of queries (b, H, Q, D_head) with ``longest`` keys each is the faster way."""
    # The fused CPU kernel's bfloat16 backward takes 4 times as long as plain matmuls (64 x 96 tokens, Zen 5).
    return (
        query.device.type == "cpu"
        and query.dtype == torch.bfloat16
        and query.requires_grad
        and query.shape[2] * longest <= MAX_MATERIALIZED**2
    )


@cache
def _cudnn_is_faster(device: torch.device) -> bool:
    """Return True from Hopper on: cuDNN is faster on an H200 for heads of 64 and 128; older GPUs were not measured."""
    return torch.backends.cudnn.is_available() and torch.cuda.get_device_capability(device) >= (
        9,
        0,
    )

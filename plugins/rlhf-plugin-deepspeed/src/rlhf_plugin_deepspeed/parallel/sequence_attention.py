"""Attention where each rank holds a slice of the tokens: ranks trade tokens for heads, attend, and trade back.

Between the two exchanges a rank has all tokens of a part of the heads, so it runs the attention of a single rank. All
other operations of a model work on one token at a time, so slices of the tokens give the same results.

Shapes: N tokens, n = N / size of them per rank (N padded up), H query heads, H_kv key heads, K width of a head.

Source: Jacobs et al. 2023 (DeepSpeed-Ulysses), arXiv:2309.14509.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf_core import ConfigError
from rlhf_torch.models.modeling import CausalLM
from rlhf_torch.packed.attention import Layout, as_matmul_inputs, refuse_sinks

from .rank_group import RankGroup


class SlicedLayout:
    """Layout of ``num_tokens`` tokens, of which each rank of the rank group has a slice.

    The slices are equal: the last ranks fill theirs up with tokens that nobody reads.

    Args:
        whole: the layout of all tokens, which decides which tokens attend to which.
        num_tokens: N, the number of tokens without the padding that makes the slices equally long.
        group: the rank group that shares the tokens.
    """

    def __init__(self, whole: Layout, num_tokens: int, group: RankGroup) -> None:
        self._whole, self._num_tokens, self._group = whole, num_tokens, group

    def sequence_lengths(self, at_least: int) -> Tensor:
        """(n,) of the whole sequence of each token of this rank; ``at_least`` for shorter ones and for padding."""
        width = -(-self._num_tokens // self._group.size)
        lengths = F.pad(
            self._whole.sequence_lengths(at_least),
            (0, width * self._group.size - self._num_tokens),
            value=at_least,
        )
        return lengths[self._group.rank * width :][:width]

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
        """Return (1, n, H, K) for query (1, H, n, K), key and value (1, H_kv, n, K); a collective call."""
        refuse_sinks(sinks, "Set backend.deepspeed.sequence_parallel to 1.")
        # The cast comes before the exchange, which then sends half as many bytes if matmuls are in bfloat16.
        query, key, value = as_matmul_inputs(query, key, value)
        copies = math.lcm(key.shape[1], self._group.size) // key.shape[1]
        if copies > 1:  # With fewer key heads than ranks, several ranks need the same key head.
            key, value = (part.repeat_interleave(copies, dim=1) for part in (key, value))
        if query.shape[-1] == value.shape[-1]:
            query, key, value = self._to_heads(query, key, value)
        else:
            (query, key), (value,) = self._to_heads(query, key), self._to_heads(value)
        output = self._whole.attend(
            layer,
            query,
            key,
            value,
            scaling=scaling,
            sliding_window=sliding_window,
            softcap=softcap,
        )
        return self._to_tokens(output)

    def _to_heads(self, *parts: Tensor) -> list[Tensor]:
        """Return (1, H / size, N, K), a part of the heads for all tokens, for each (1, H, n, K); one exchange."""
        size = self._group.size
        grouped = [
            torch.unflatten(part[0], 0, (size, -1)) for part in parts
        ]  # (size, H / size, n, K)
        counts = [part.shape[1] for part in grouped]
        slices = self._group.exchange(torch.cat(grouped, dim=1))
        heads = slices.transpose(0, 1).flatten(1, 2)  # (sum of H / size, size * n, K)
        heads = heads[:, : self._num_tokens]  # (sum of H / size, N, K)
        return [part[None] for part in torch.split(heads, counts)]

    def _to_tokens(self, output: Tensor) -> Tensor:
        """Return (1, n, H, K), all heads for this rank's tokens, for (1, N, H / size, K); one exchange."""
        size = self._group.size
        padding = -self._num_tokens % size
        padded = F.pad(output[0], (0, 0, 0, 0, 0, padding))  # (size * n, H / size, K)
        slices = torch.unflatten(padded, 0, (size, -1))
        heads = self._group.exchange(slices)  # (size, n, H / size, K)
        return heads.transpose(0, 1).flatten(1, 2)[None]


def check_layers(lm: CausalLM, size: int) -> None:
    """Refuse ranks that share sequences for a model whose layers carry a state along each sequence.

    Raises:
        ConfigError: ``size`` is above 1, and a layer does.
    """
    if size > 1 and lm.recurrent:
        raise ConfigError(
            f"sequence_parallel {size} with {type(lm.model).__name__}: {len(lm.recurrent)} of its layers carry a state "
            "from token to token, so ranks cannot compute slices of a sequence. Set "
            "--backend.deepspeed.sequence_parallel 1; long sequences take less memory with "
            "gradient_checkpointing true.",
            code="deepspeed/layers-with-state",
        )


def check_heads(num_heads: int, size: int) -> None:
    """Refuse a number of ranks that does not divide the model's attention heads.

    Raises:
        ConfigError: ``size`` does not divide ``num_heads``; the message lists the sizes that do.
    """
    if num_heads % size:
        fitting = ", ".join(str(n) for n in range(1, num_heads + 1) if num_heads % n == 0)
        raise ConfigError(
            f"sequence_parallel {size} with a model of {num_heads} attention heads: each rank computes an equal part "
            f"of the heads, so {size} must divide their number. Set --backend.deepspeed.sequence_parallel to one of "
            f"{fitting}.",
            code="deepspeed/heads-not-divisible",
        )

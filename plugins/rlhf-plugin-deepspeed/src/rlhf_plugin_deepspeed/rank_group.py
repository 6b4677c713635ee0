"""Neighboring ranks that compute the same sequences together: each a slice of the tokens, or of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core import ConfigError

from .library import load_deepspeed, quietly
from .ranks import TIMEOUT, Ranks

Array = NDArray[Any]


class RankGroup:
    """``size`` neighboring ranks; made by ``join_group``. A group of one exchanges nothing."""

    def __init__(
        self, size: int, rank: int, device: torch.device, handle: dist.ProcessGroup | None
    ) -> None:
        self.size = size
        self.rank = rank
        """Of this process in its group."""
        self._device = device
        self._handle = handle

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def exchange(self, parts: Tensor) -> Tensor:
        """Give each rank of the group its part of (size, ...), and return what the ranks gave this one, in their
        order. Gradients go the way back."""
        from deepspeed.sequence.layer import _dim_zero_all_to_all

        # The operator under DeepSpeed's own Ulysses attention. Its other exchanges take layouts of their own and
        # cannot be compiled.
        exchanged: Tensor = _dim_zero_all_to_all(self._handle, parts)
        return exchanged

    def concatenated(self, own: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the ranks' rows (n, ...), one rank after the other. Only this rank's own rows have a gradient.

        Args:
            counts: rows of every rank.
        """
        if self.size == 1:
            return own
        buffer = own.new_zeros(max(counts), *own.shape[1:])
        buffer[: len(own)] = own.detach()
        buffers = [torch.empty_like(buffer) for _ in counts]
        dist.all_gather(buffers, buffer, group=self._handle)
        rows = [part[:count] for part, count in zip(buffers, counts, strict=True)]
        rows[self.rank] = own
        return torch.cat(rows)

    def arrays_of_all(self, own: Sequence[Array]) -> list[list[Array]]:
        """Return the arrays of every rank, in the order of the ranks.

        Args:
            own: alike on all ranks in number, type and all axes but the first.
        """
        lengths = torch.tensor([len(array) for array in own], device=self._device)
        all_lengths = [torch.empty_like(lengths) for _ in range(self.size)]
        dist.all_gather(all_lengths, lengths, group=self._handle)
        counts = [part.tolist() for part in all_lengths]
        sizes = [array.dtype.itemsize * int(np.prod(array.shape[1:])) for array in own]
        longest = max(1, *(sum(map(int.__mul__, sizes, count)) for count in counts))
        packed = b"".join(array.tobytes() for array in own).ljust(longest, b"\0")
        mine = torch.frombuffer(bytearray(packed), dtype=torch.uint8).to(self._device)
        buffers = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(buffers, mine, group=self._handle)
        return [
            _unpacked(buffer.cpu().numpy().tobytes(), own, count)
            for buffer, count in zip(buffers, counts, strict=True)
        ]


def join_group(ranks: Ranks, size: int, option: str) -> RankGroup:
    """Return this rank's group of ``size``; all ranks call it together.

    Args:
        option: that ``size`` comes from.

    Raises:
        ConfigError: ``size`` does not divide the ranks.
    """
    if size == 1:
        return RankGroup(1, 0, ranks.device, None)
    if ranks.world_size % size:
        raise ConfigError(
            f"{option} {size} with {ranks.world_size} ranks: {size} ranks compute every sequence together, so it must "
            f"divide the number of ranks. Change --backend.deepspeed.{option} or the number of the role's ranks."
        )
    handle = _group_handle(ranks.rank, ranks.world_size, size, ranks.device)
    return RankGroup(size, ranks.rank % size, ranks.device, handle)


@cache
def _group_handle(rank: int, world_size: int, size: int, device: torch.device) -> dist.ProcessGroup:
    """Make the groups of a size once for all roles of this process, and return this rank's."""
    deepspeed = load_deepspeed(device)
    with quietly():
        deepspeed.init_distributed("nccl" if device.type == "cuda" else "gloo")
    from deepspeed.sequence.layer import register_all_to_all_group

    own: dist.ProcessGroup | None = None
    for first in range(0, world_size, size):  # every rank takes part in making every group
        members = list(range(first, first + size))
        handle = dist.new_group(members, timeout=TIMEOUT)
        if rank in members:
            own = handle
    assert own is not None
    register_all_to_all_group(own)
    return own


def _unpacked(packed: bytes, like: Sequence[Array], counts: Sequence[int]) -> list[Array]:
    arrays, offset = [], 0
    for array, count in zip(like, counts, strict=True):
        shape = (count, *array.shape[1:])
        size = int(np.prod(shape))
        part = np.frombuffer(packed, array.dtype, size, offset).reshape(shape)
        arrays.append(part)
        offset += part.nbytes
    return arrays

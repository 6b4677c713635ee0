"""Rank groups: neighboring ranks that compute the same sequences, each a slice of the tokens or of the weights."""

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
from rlhf_torch.ranks.ranks import TIMEOUT, Ranks

from ..library import load_deepspeed, quietly

Array = NDArray[Any]


class RankGroup:
    """``size`` neighboring ranks; ``join_group`` makes it. A rank group of one rank exchanges nothing."""

    def __init__(
        self, size: int, rank: int, device: torch.device, handle: dist.ProcessGroup | None
    ) -> None:
        self.size = size
        self.rank = rank
        """Rank of this process within the rank group, 0 to ``size`` - 1."""
        self._device = device
        self._handle = handle

    @property
    def is_first(self) -> bool:
        """Whether this process is rank 0 of the rank group."""
        return self.rank == 0

    def exchange(self, parts: Tensor) -> Tensor:
        """Send ``parts[n]`` of (size, ...) to rank n of the group; return the received parts (size, ...) by sender.

        A collective call. The backward pass sends the gradients the opposite way.
        """
        from deepspeed.sequence.layer import _dim_zero_all_to_all

        # This operator is the one under DeepSpeed's own Ulysses attention. DeepSpeed's other exchanges expect other
        # layouts and cannot be compiled.
        exchanged: Tensor = _dim_zero_all_to_all(self._handle, parts)
        return exchanged

    def concatenated(self, own: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the rows of all ranks (sum of counts, ...), one rank after the other; a collective call.

        Only this rank's own rows have a gradient.

        Args:
            own: the rows (n, ...) of this rank.
            counts: the number of rows of every rank.
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

    def summed(self, own: Tensor) -> Tensor:
        """Return the sum of a tensor over the ranks, without a gradient; a collective call."""
        total = own.detach().clone()
        if self.size > 1:
            dist.all_reduce(total, group=self._handle)
        return total

    def arrays_of_all(self, own: Sequence[Array]) -> list[list[Array]]:
        """Return a list of arrays for every rank, in the order of the ranks; a collective call.

        Args:
            own: the arrays of this rank. All ranks have equally many, with the same types and the same shapes but for
                the first axis.
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
    """Return this rank's rank group of ``size`` ranks; a collective call of all ranks.

    Args:
        option: the name of the option that ``size`` comes from, for the error.

    Raises:
        ConfigError: ``size`` does not divide the number of ranks.
    """
    if size == 1:
        return RankGroup(1, 0, ranks.device, None)
    if ranks.world_size % size:
        sizes = range(1, ranks.world_size + 1)
        fitting = ", ".join(str(n) for n in sizes if ranks.world_size % n == 0)
        raise ConfigError(
            f"{option} {size} with {ranks.world_size} ranks: {size} ranks compute every sequence together, so {size} "
            f"must divide the number of ranks. Set --backend.deepspeed.{option} to one of {fitting}, or change the "
            "number of the role's ranks.",
            code="ranks/uneven",
        )
    handle = _group_handle(ranks.rank, ranks.world_size, size, ranks.device)
    return RankGroup(size, ranks.rank % size, ranks.device, handle)


@cache
def _group_handle(rank: int, world_size: int, size: int, device: torch.device) -> dist.ProcessGroup:
    """Return this rank's process group of ``size`` ranks; made once per size and shared by all roles of the process."""
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

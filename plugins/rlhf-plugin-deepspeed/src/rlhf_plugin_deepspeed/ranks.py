"""This process among the ranks of its job."""

from __future__ import annotations

import atexit
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from rlhf_core import ConfigError

NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for the others in one collective call."""
SUM_BYTES = 256 * 2**20
"""What is summed over ranks at once: bounds the copy that it takes."""


class Ranks:
    """All ranks; made by ``join``."""

    def __init__(self, rank: int, world_size: int, device: torch.device) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device = device

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def largest(self, number: int) -> int:
        """Return the largest of the ranks' numbers."""
        if self.world_size == 1:
            return number
        tensor = torch.tensor(number, dtype=torch.int64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return int(tensor)

    def sum_(self, tensors: list[Tensor]) -> None:
        """Replace each tensor by its sum over ranks, in place."""
        if self.world_size == 1:
            return
        waiting: list[Tensor] = []
        size = 0
        for tensor in tensors:
            if waiting and size + tensor.nbytes > SUM_BYTES:
                _sum_together(waiting)
                waiting, size = [], 0
            waiting.append(tensor)
            size += tensor.nbytes
        if waiting:
            _sum_together(waiting)

    def wait(self) -> None:
        """Return when all ranks are here."""
        if self.world_size > 1:
            dist.barrier()


def join(device: torch.device) -> Ranks:
    """Meet the other ranks: NCCL on a GPU, gloo on a CPU. Alone where the environment says nothing of others.

    An existing process group is taken as it is; a new one lives as long as this process, because DeepSpeed keeps it
    for good.

    Raises:
        ConfigError: the environment says only a part of what is needed.
    """
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        given = [name for name in NEEDED if name in os.environ]
        if given == [
            "LOCAL_RANK"
        ]:  # left by a single rank, see below, in a process that it has started
            given = []
        if given and (missing := [name for name in NEEDED if name not in os.environ]):
            raise ConfigError(
                f"the environment has {', '.join(given)} but lacks {', '.join(missing)}; start the ranks with a "
                "launcher that sets all of them, or set none of them for a single process"
            )
        if given:
            dist.init_process_group(backend, timeout=TIMEOUT)
        else:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        atexit.register(_leave)
    # Of a single process nobody has set it, and DeepSpeed insists on it.
    os.environ.setdefault("LOCAL_RANK", "0")
    return Ranks(dist.get_rank(), dist.get_world_size(), device)


def own_device(wanted: torch.device) -> torch.device:
    """Return this rank's device, which on a GPU is the one numbered LOCAL_RANK among those that it sees."""
    if wanted.type != "cuda":
        return wanted
    local = int(os.environ.get("LOCAL_RANK", "0"))
    count = torch.cuda.device_count()
    if local >= count and count != 1:
        raise ConfigError(f"LOCAL_RANK is {local}, but this process sees {count} GPUs")
    device = torch.device("cuda", local if local < count else 0)
    torch.cuda.set_device(device)
    return device


def _sum_together(tensors: list[Tensor]) -> None:
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
